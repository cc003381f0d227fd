"""Maintenance of this broker's logs: flushes, retention, compaction, checkpoints, failed directories, damaged logs.

The logs themselves are `paceline.log`. Read `replica_storage.py` first.
"""
