"""Limits on requests: memory, elements of a message, senders, and fairness of the event loop.

Read `receive_limiter.py` first.
"""
