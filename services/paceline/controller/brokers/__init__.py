"""Changes of brokers: registrations, leases, controlled shutdown, ISR notifications.

Read `broker_changes.py` first.
"""
