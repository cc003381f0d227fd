"""Elections: of the active controller, of preferred leaders and on request, and unclean restarts.

Read `controller_election.py` first. A controller's first steps after its election are in `failover.py`.
"""
