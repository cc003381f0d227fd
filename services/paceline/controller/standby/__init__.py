"""Failover, and the copy of the state that makes a standby's failover fast.

Read `failover.py` first.
"""
