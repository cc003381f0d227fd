"""The vocabulary of Paceline: identifiers, decisions, requests and errors as plain values.

The package does no I/O and imports neither gRPC nor ZooKeeper. Read `identifiers.py` first.
"""
