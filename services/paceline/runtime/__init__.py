"""Parts of a process around its core: settings, logging, metrics, health, life cycle.

Read `lifecycle.py` first. `embedded_zookeeper.py` runs the real ZooKeeper server as a child process.
"""
