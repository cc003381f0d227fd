"""A partition on this broker: leadership, ISR, high watermark, and the manager of all partitions.

Read `partition.py` first, then `replica_manager.py`.
"""
