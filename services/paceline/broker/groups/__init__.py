"""The group coordinator of a broker: members, generations and committed offsets of consumer groups.

Read `coordinator.py` first, then `joining.py` for joins and static members, `rebalance.py` for generations and
sessions, and `group_storage.py` for storage in ``__consumer_offsets``. The package is pure: the scheduler and the
offsets topic are passed in.
"""
