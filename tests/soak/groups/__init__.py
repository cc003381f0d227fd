"""A long test of consumer groups: members and coordinators die, and every record and commit is accounted for.

Read `soak.py` first; `worker.py` runs members, `account.py` reads their notes.
"""
