"""The time that a deposed leader may continue to answer as leader, and the answers that count as its violations."""

from typing import TYPE_CHECKING

from paceline.model.identifiers import TopicPartition
from tests.simulation.partition_record import PartitionRecords
from tests.simulation.verdicts import Verdicts

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster
    from tests.simulation.machines import BrokerLife


class DeposedChecks:
    """C12, and the excuse of C9 to C11 for answers given before a deposed leader can know.

    A successor is elected in ZooKeeper before either leader is told. A leader that is cut off notices within a session
    or a lease; until then a client that trusts the latest answer may hear older offsets than before. The time counts
    from when the successor leads: a controller may die between its write and its requests, and then every ISR member
    still fetches from the old leader, which has what they have.
    """

    def __init__(self, cluster: "SimulatedCluster", verdicts: Verdicts, records: PartitionRecords) -> None:
        self._cluster = cluster
        self._verdicts = verdicts
        self._records = records

    def answered(self, life: "BrokerLife", topic_partition: TopicPartition, topic_id: str) -> bool:
        """Check an answer given as leader; return whether the leader had been deposed by then."""
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
            # Without leases a leader with a session is deposed by a request alone, which a cut link can hold back.
            return True
        self._verdicts.exercise("C12")
        if age_ms > profile.deposed_bound_ms and not record.harmed:
            self._verdicts.fail(
                "C12",
                f"{record}: {life.name} answers as leader of epoch {hosted.leader_epoch} {age_ms:.0f} ms after a "
                f"successor began to lead, {profile.deposed_bound_ms} are allowed",
            )
        return True
