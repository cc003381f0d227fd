"""Watch streams and the long-poll RPCs that correspond to them.

Read `watch_servicer.py` first.
"""
