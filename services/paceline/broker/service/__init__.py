"""The broker process: gRPC servers and clients, threads, clocks and sockets around `BrokerNode`.

Read `process.py` first.
"""
