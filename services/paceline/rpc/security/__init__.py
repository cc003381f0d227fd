"""TLS and authorization: credentials that reload, and the guard that determines the caller of every call.

Read `guard.py` first: it allows or denies every call. `access_rules.py` has the rules of the internal RPCs.
"""
