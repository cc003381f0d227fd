"""Control requests to brokers: one batch per broker, ordering, retries and acknowledgements.

Read `channel_manager.py` first.
"""
