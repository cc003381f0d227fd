"""Reassignment of replicas, step by step.

Read `reassignment.py` first.
"""
