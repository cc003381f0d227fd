"""Fetch records of followed partitions from their leaders.

Read `replica_fetcher.py` first.
"""
