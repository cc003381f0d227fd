"""Logs of this broker: flushes, retention, damaged and stray logs, log directories.

Read `interfaces.py` first.
"""
