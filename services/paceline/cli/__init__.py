"""The `paceline` command.

Read `main.py` for the command groups; each module holds a group. Data goes to stdout, notes to stderr; `failures.py`
has the exit codes.
"""
