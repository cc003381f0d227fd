"""Metrics of the cluster, computed from its events by plain functions over rows. Read `metrics.py` first."""
