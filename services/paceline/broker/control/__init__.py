"""Requests of the controller: LeaderAndIsr, StopReplica, UpdateMetadata, and the epoch fences before them.

Read `control_requests.py` first, then `admission.py`.
"""
