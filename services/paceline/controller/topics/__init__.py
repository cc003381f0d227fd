"""Topics: creation, deletion, added partitions, placement and configuration.

Read `create_delete_topics.py` first.
"""
