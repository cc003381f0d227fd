"""State machines of partitions and replicas, the choice of leaders, and the writer of partition states.

Read `partition_state_machine.py` first.
"""
