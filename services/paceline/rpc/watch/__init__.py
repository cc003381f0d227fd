"""Watch streams of the events of a process, and their publication to a topic.

Read `watch_servicer.py` first.
"""
