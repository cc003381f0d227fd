"""Show and check the files of a log directory that no broker uses. Nothing is changed.

`dump.py` decodes the files with the readers of the broker, `verify.py` applies the rules.
"""
