"""The broker in its cluster: registration, heartbeats, controlled shutdown, dynamic settings.

Read `registration.py` first.
"""
