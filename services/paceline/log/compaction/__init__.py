"""Compaction of one log: keep the last record of each key, at its offset.

Read `cleaner.py` first. `cleanable.py` selects the segments that may be cleaned, and `broker/storage/log_cleaner.py`
decides when a log is cleaned.
"""
