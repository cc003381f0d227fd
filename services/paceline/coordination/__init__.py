"""ZooKeeper: one interface, the znodes of Kafka's layout, and the recipes built on them.

Read `interface.py` first, then `znodes/` (paths and JSON, pure) and `recipes.py` (registration, broker ids, cluster
id). `flow.py` runs multi-step operations as generators, `patient_zookeeper.py` repeats requests after a connection
loss, and `kazoo/` is the client of a real ensemble.
"""
