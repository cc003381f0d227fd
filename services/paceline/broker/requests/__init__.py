"""Requests of clients and followers: produce, fetch, delete records, producer ids.

Read `produce.py` and `fetch.py` first.
"""
