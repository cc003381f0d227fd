"""The broker: replicas it leads and follows.

Read `node.py` first, then `replica_manager.py`; the doors are `driver.py`, `servicer.py` and `__main__.py`.
"""
