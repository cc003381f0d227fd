"""Clusters of real processes under load and faults: ``python -m tests.soak SCENARIO``, ``make soak SCENARIO=...``.

`rounds` has the rounds of the scenario ``faults`` and their checks, with `faults`, `sandbox` for network and disks, and
`writers` for the load. `outage`, `failover`, `groups` and `kill_matrix` have the other scenarios; `kills` is the short
soak of the test suite.
"""
