"""Requests to brokers: batching per broker, order, retries and acknowledgements.

Read `channel_manager.py` first.
"""
