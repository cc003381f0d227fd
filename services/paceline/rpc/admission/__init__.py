"""Limits on a request before its handler runs: memory while it is received, number of fields, elements of lists.

docs/protocol/limits.md lists each threat with its limit and its test. Read `receive_limiter.py` first.
"""
