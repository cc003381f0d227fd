"""Compare what the replicas of partitions have stored, by digests of ranges. Read `compare.py` first."""
