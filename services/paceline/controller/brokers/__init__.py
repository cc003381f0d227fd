"""Changes of brokers: registrations, leases, controlled shutdown, ISR notifications, dynamic settings.

Read `broker_changes.py` first.
"""
