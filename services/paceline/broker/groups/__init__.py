"""The group coordinator of a broker: members, generations and committed offsets of consumer groups.

Read `coordinator.py` first, then `rebalance.py` for joining and `group_storage.py` for storage in
``__consumer_offsets``. The package is pure: the scheduler and the offsets topic are passed in.
"""
