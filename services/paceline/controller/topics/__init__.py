"""Topics: creation, deletion, growth, placement and settings.

Read `create_delete_topics.py` first.
"""
