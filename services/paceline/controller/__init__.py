"""The controller: elections, topics, reassignment, deletion.

Read `event_handler.py` first, then `state/` and `election/`. All I/O of the process is in `service/`.
"""
