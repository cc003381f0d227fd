"""The `paceline` command.

Read `main.py` for the groups; each file holds one. Data goes to stdout, notes to stderr; `failures.py` has the exit
codes.
"""
