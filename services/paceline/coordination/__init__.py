"""ZooKeeper: the paths and JSON of Kafka's layout, one interface, a kazoo door and an in-memory server.

Read `interface.py` first, then `znodes.py` (paths and JSON) and `recipes.py` (registration, election and the like, as
flows). `patient.py` waits out connection losses, `memory.py` is server and client for tests and the simulator.
`zookeeper.py` is the only file that imports kazoo; `embedded.py` runs the real server as a child process.
"""
