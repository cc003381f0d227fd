"""State machines of partitions and replicas, and the writer of partition states.

Read `partition_state_machine.py` first.
"""
