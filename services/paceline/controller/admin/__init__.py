"""Administrative requests and their values.

Read `admin_calls.py` first.
"""
