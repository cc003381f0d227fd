"""Requests of the controller: LeaderAndIsr, StopReplica, UpdateMetadata, and the fence of controller epochs.

Read `control_requests.py` first.
"""
