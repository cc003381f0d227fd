"""Limit the time for which a deposed leader answers as leader, and excuse its answers from other invariants."""

from typing import TYPE_CHECKING

from paceline.model.identifiers import TopicPartition
from tests.simulation.partition_record import PartitionRecords
from tests.simulation.verdicts import Verdicts

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster
    from tests.simulation.machines import BrokerLife


class DeposedChecks:
    """C12, and the excuse from C9 to C11 for answers that a leader gives before it can know that it was deposed.

    A successor is elected in ZooKeeper before a request reaches either leader. A leader that is cut off notices within
    a session timeout or a lease; until then a client that trusts the latest answer may receive older offsets than
    before. The time counts from the moment when the successor leads: a controller may die between its write and its
    requests, and until then every ISR member still fetches from the old leader, which has the same records.
    """

    def __init__(self, cluster: "SimulatedCluster", verdicts: Verdicts, records: PartitionRecords) -> None:
        self._cluster = cluster
        self._verdicts = verdicts
        self._records = records

    def answered(self, life: "BrokerLife", topic_partition: TopicPartition, topic_id: str) -> bool:
        """Check an answer of a leader; return whether the leader was already deposed."""
        hosted = life.node.replica_manager.partitions.get(topic_partition)
        if hosted is None or not hosted.is_leader:
            return False
        record = self._records.get(topic_id, topic_partition)
        elected_us = record.succeeded_us(life.broker_id, hosted.leader_epoch)
        if elected_us is None:
            return False
        led_us = record.led_by_successor_us(life.broker_id, hosted.leader_epoch)
        if led_us is None:
            return True
        age_ms = (self._cluster.world.now_us - led_us) / 1_000
        profile = self._cluster.profile
        if not profile.lease_ms and life.node.replica_manager.in_contact():
            # Without leases only a request deposes a leader that has a session, and a cut link can delay the request.
            return True
        self._verdicts.exercise("C12")
        if age_ms > profile.deposed_bound_ms and not record.harmed:
            self._verdicts.fail(
                "C12",
                f"{record}: {life.name} answers as leader of epoch {hosted.leader_epoch} {age_ms:.0f} ms after a "
                f"successor began to lead, {profile.deposed_bound_ms} are allowed",
            )
        return True
