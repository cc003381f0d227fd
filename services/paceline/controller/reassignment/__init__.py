"""Reassignment of replicas, step by step.

Read `reassignment.py` first, then `reassignment_steps.py`.
"""
