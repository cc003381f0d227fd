"""The controller: elections, topics, reassignment, deletion.

Read `machine.py` first; the doors are `driver.py`, `servicer.py` and `__main__.py`.
"""
