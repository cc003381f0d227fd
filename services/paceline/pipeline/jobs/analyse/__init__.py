"""Compute metrics of the cluster from its events, with plain functions over rows. Read `metrics.py` first."""
