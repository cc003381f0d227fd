"""Elections: of the active controller, and of partition leaders.

Read `leader_election.py` first. A controller's first steps after its election are in `failover.py`.
"""
