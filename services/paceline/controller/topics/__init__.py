"""Topics: creation, deletion, added partitions and placement.

Read `create_delete_topics.py` first.
"""
