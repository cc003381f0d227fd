"""The designs this protocol grew out of, kept small and runnable: replication led by the leaders, without a controller.

Kafka's first design of 2011 had no controller. Replicas elected a leader through a node of their own, the leader
decided on ISR, commits and reassignment, and told followers what to do through a durable queue per broker. A draft of a
controller replaced it (KAFKA-343), and that draft became the controller of `paceline.controller`. No service runs what
is here: it is tested beside its successors, so that every rule can be compared with what it turned into.

| Here | Today |
|---|---|
| `state_change_queue` | a channel per broker, a full resend at failover: `controller/channel/`, `standby/failover.py` |
| `leader_election` | election strategies of the controller: `controller/election/leader_election.py` |
| `commit_loop` | high watermark and ISR upkeep: `replication/high_watermark.py`, `replication/isr.py` |
| `reassignment` | three phases: `controller/reassignment/reassignment.py` |

Read `state_change_queue` first. The rows S0-1 and so on are in docs/origins.md.
"""
