"""Requests of the controller: LeaderAndIsr, StopReplica, UpdateMetadata, and the fences of epochs before them.

Read `control_requests.py` first, then `admission.py`.
"""
