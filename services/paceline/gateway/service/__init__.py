"""gRPC, threads and clocks of the gateway; read `servicer.py` first."""
