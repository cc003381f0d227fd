"""Limits for a request before it is handled: memory while it is received, fields, and elements of lists.

docs/protocol/limits.md lists each threat with its limit and its test. Read `receive_limiter.py` first.
"""
