"""Request and answer pairs on one stream, at both ends.

Read `stream_server.py` first.
"""
