"""A cluster of real processes under load and faults, for a number of rounds: ``make soak ROUNDS=n``.

`rounds` has the rounds and their checks, `faults` the faults, `sandbox` the network and disks for the faults, `writers`
the load. `kills` is the short soak of the test suite, `outage` the soak without ZooKeeper and controllers.
"""

from tests.soak.kills import BROKERS, PARTITIONS, TOPIC, Load, Outcome, read_back, soak, wait_full_isr

__all__ = ["BROKERS", "PARTITIONS", "TOPIC", "Load", "Outcome", "read_back", "soak", "wait_full_isr"]
