"""The controller process: gRPC servers and clients, threads, clocks and sockets around `ControllerNode`.

Read `process.py` first.
"""
