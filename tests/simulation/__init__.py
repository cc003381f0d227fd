"""A whole cluster in one thread, replayed from a seed.

The nodes are the services' own `ControllerNode` and `BrokerNode`; only the ports differ. Read `cluster.py` first, then
`faults.py` and `invariants.py`. `python -m tests.simulation --seed 42` replays one seed with its timeline.
"""
