"""Consumer groups on the client's side: membership, heartbeats, committed offsets.

Read `membership.py` first: it joins and keeps the membership alive. `coordinator.py` finds and calls the coordinator,
`committed.py` commits and fetches offsets, `subscriptions.py` keeps the topics that a member subscribes to.
"""
