"""A cluster of real processes under load and faults, for as many rounds as asked: ``make soak ROUNDS=n``.

`rounds` has the rounds and what is checked, `faults` the faults, `sandbox` the network and the disks that they need,
`writers` the load. `kills` is the short soak of the test suite, `outage` the one without ZooKeeper and controllers.
"""

from tests.soak.kills import BROKERS, PARTITIONS, TOPIC, Load, Outcome, read_back, soak, wait_full_isr

__all__ = ["BROKERS", "PARTITIONS", "TOPIC", "Load", "Outcome", "read_back", "soak", "wait_full_isr"]
