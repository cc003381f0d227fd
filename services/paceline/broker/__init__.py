"""The broker: the replicas it leads and follows, and the requests it answers.

Read `node.py` first, then `partition/`, `control/` and `requests/`. All I/O of the process is in `service/`.
"""
