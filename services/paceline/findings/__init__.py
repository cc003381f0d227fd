"""Say in one true plain sentence what is wrong with a partition, and why, as pure functions.

`facts.py` has the facts about one partition, `explain.py` the rules that turn them into findings.
"""
