"""A partition on this broker: leadership, ISR and high watermark; and all partitions that the broker hosts.

Read `partition.py` first, then `hosted_partitions.py`.
"""
