"""Elections: of the active controller, and of partition leaders.

Read `leader_election.py` first.
"""
