"""Many requests and their responses on one stream, for server and client.

Read `stream_server.py` first.
"""
