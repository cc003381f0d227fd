"""`paceline gateway`: publish and subscribe for callers that have only generated stubs.

The modules beside this one are pure: `member.py` shares the partitions of a group member among streams and callers of
Pull (read it first), `held_partition.py` keeps the positions of one partition, `credits.py` limits what is under way,
`spreading.py` and `assignor.py` choose partitions, `leases.py` has the leases and tokens of Pull. `service/` has gRPC,
threads and clocks.
"""
