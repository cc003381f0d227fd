"""Compaction of one log: keep the last record of each key, at its offset.

Read `cleaner.py` first; which segments may be cleaned is in `cleanable.py`. When a log is cleaned is decided in
`broker/storage/log_cleaner.py`.
"""
