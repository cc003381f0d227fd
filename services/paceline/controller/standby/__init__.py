"""Failover to this controller, and the mirror that keeps a standby warm.

Read `failover.py` first.
"""
