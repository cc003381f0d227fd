"""Client side of consumer groups: membership, heartbeats, committed offsets.

Read `membership.py` first: it joins the group and handles rebalances. `coordinator.py` finds and calls the coordinator,
`committed.py` commits and fetches offsets, `subscriptions.py` tracks the topics that a member subscribes to.
"""
