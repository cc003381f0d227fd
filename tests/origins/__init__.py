"""The designs from which this protocol grew, small and runnable: replication managed by leaders, without a controller.

Kafka's first design of 2011 had no controller. Replicas elected a leader with an ephemeral node, the leader decided on
ISR, commits and reassignment, and sent orders to followers through a durable queue per broker. A draft of a controller
replaced this design (KAFKA-343) and became the controller of `paceline.controller`. No service runs the code here: it
is tested beside its successors, so that every rule can be compared with its present form.

| Here | Today |
|---|---|
| `state_change_queue` | a channel per broker, a full resend at failover: `controller/channel/`, `failover.py` |
| `leader_election` | election strategies of the controller: `controller/state/leader_election.py` |
| `commit_loop` | high watermark and ISR updates: `replication/high_watermark.py`, `replication/isr.py` |
| `reassignment` | three phases: `controller/reassignment/reassignment.py` |

Read `state_change_queue` first. The rows S0-1 and so on are in docs/origins.md.
"""
