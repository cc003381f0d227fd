"""Watch streams and their long-poll twins.

Read `watch_servicer.py` first.
"""
