"""Maintenance of this broker's logs: flushes, retention, damaged and stray logs, log directories.

The logs themselves are `paceline.log`. Read `log_dirs.py` first.
"""
