"""Fetches of this broker's followers from their leaders.

Read `replica_fetcher.py` first.
"""
