"""Compare the stored records of replicas, by digests of ranges. Read `compare.py` first."""
