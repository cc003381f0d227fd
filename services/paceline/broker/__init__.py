"""The broker: replicas it leads and follows. Read `replica_manager.py` first; doors are `driver.py`, `servicer.py` and `__main__.py`."""
