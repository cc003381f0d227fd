"""The vocabulary of Paceline: identifiers, decisions, requests and errors as plain values.

Nothing here does I/O or knows gRPC, ZooKeeper or files. Read `identifiers.py` first.
"""
