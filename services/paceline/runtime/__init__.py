"""What every process needs around its core: ports, flows, logging, metrics, life cycle.

Read `ports.py` first: it names the few things the cores are handed, in the services and in the simulator alike.
"""
