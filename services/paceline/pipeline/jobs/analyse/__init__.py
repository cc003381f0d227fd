"""What the cluster's own events say about it. The metrics are plain functions over rows. Read `metrics.py` first."""
