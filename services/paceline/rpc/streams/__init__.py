"""Pairs of request and answer on one stream, for server and client.

Read `stream_server.py` first.
"""
