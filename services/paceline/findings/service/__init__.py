"""Gather the facts about partitions with public calls; read `gather.py`."""
