"""One partition on this broker: leadership, ISR, high watermark, and the manager that owns all partitions.

Read `partition.py` first, then `replica_manager.py`.
"""
