"""The broker: the replicas it leads and follows, and the requests it answers.

Read `node.py` first, then `replica_manager.py` and `partition/`. All I/O of the process is in `service/`.
"""
