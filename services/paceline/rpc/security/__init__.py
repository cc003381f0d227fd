"""TLS and identity: credentials that reload, and the one place where every call meets its caller's identity.

Read `guard.py` first: it allows or denies every call. `access_rules.py` has the rule of every internal RPC.
"""
