"""A long test of consumer groups: members and coordinators die, and every record and commit is accounted for.

Read `__main__.py` first; `worker.py` runs members, `account.py` reads their notes.
"""
