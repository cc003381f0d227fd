"""ZooKeeper: the paths and JSON of Kafka's layout, one interface, a kazoo door and an in-memory server.

Read `interface.py` first, then `znodes.py`. Only `zookeeper.py` imports kazoo.
"""
