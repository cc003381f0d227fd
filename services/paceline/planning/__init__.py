"""Plan which brokers hold the replicas of partitions, as a pure function. Read `planner.py` first."""
