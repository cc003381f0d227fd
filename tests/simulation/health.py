"""Whether a cluster is complete (C13), else the reason with the awaited process or partition."""

from typing import TYPE_CHECKING

from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.log.directory_names import is_being_deleted
from paceline.model.identifiers import TopicPartition
from tests.simulation.machines import BrokerLife
from tests.simulation.partition_record import PartitionRecord

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster


def why_not_whole(cluster: "SimulatedCluster") -> str | None:
    """Return the problem with servers or leadership, None when the cluster is complete."""
    active = cluster.active_controller()
    if active is None:
        return "no controller is active"
    if active.node.controller_epoch != cluster.checks.zookeeper.controller_epoch:
        return f"{active.name} is active in {active.node.controller_epoch}, which is over"
    for broker_id, machine in cluster.brokers.items():
        life = machine.life
        if life is None or not (life.node.ready or _lacks_only_harmed(cluster, life)):
            return f"broker {broker_id} is not ready"
        registered = cluster.checks.zookeeper.registered.get(broker_id)
        if registered is None or life.node.broker_epoch != registered:
            return f"broker {broker_id} is registered with {registered}, and believes in {life.node.broker_epoch}"
    if cluster.server.tree.children(znodes.DELETE_TOPICS):
        return "a topic deletion is not finished"
    for path in (znodes.REASSIGN_PARTITIONS, znodes.PREFERRED_REPLICA_ELECTION):
        if cluster.server.tree.get(path) is not None and not (
            path == znodes.REASSIGN_PARTITIONS and moves_only_wait(cluster)
        ):
            return f"{path} is still there"
    for record in cluster.checks.records.living():
        reason = _why_not_led(cluster, record)
        if reason is not None:
            return f"{record}: {reason}"
    return None


def _why_not_led(cluster: "SimulatedCluster", record: PartitionRecord) -> str | None:
    zk = record.zk
    if zk is None:
        return "it has no state"
    if not zk.has_leader:
        return None if waits_for_people(cluster, record) else f"it has no leader, ISR {zk.isr}"
    if _is_the_only_copy_damaged(record):
        return None
    if record.assignment.is_being_reassigned:
        return f"it is being moved, {record.assignment}"
    if sorted(zk.isr) != sorted(record.assignment.replicas):
        return f"ISR {zk.isr} of {record.assignment.replicas}"
    leader = cluster.brokers[zk.leader].life
    hosted = None if leader is None else leader.node.replica_manager.hosted.online.get(record.topic_partition)
    if hosted is None or not hosted.is_leader or hosted.leader_epoch != zk.leader_epoch:
        return f"broker {zk.leader} does not lead in epoch {zk.leader_epoch}"
    if sorted(hosted.isr) != sorted(zk.isr):
        return f"broker {zk.leader} has ISR {hosted.isr}"
    records, topic = cluster.checks.records, record.topic_partition.topic
    if topic not in records.spoiled_configs and hosted.min_insync_replicas != records.min_insync_replicas(topic):
        return f"broker {zk.leader} commits with {hosted.min_insync_replicas} in-sync replicas"
    for life in cluster.running_brokers():
        known = life.node.metadata.snapshot.partition(record.topic_partition)
        if known is None or (known.leader, known.leader_epoch) != (zk.leader, zk.leader_epoch):
            return f"{life.name} still believes in {known and (known.leader, known.leader_epoch)}"
        if known.topic_id != record.topic_id:
            return f"{life.name} still knows topic id {known.topic_id}"
        if known.offline_replicas:
            return f"{life.name} believes that {known.offline_replicas} are offline"
    return None


def unfinished_moves(cluster: "SimulatedCluster") -> list[str]:
    """Return the replicas that still move between directories, and the directories that are still to be deleted."""
    moving = [
        f"{life.name} still moves {log.topic_partition} to {log.future.path}"
        for life in cluster.running_brokers()
        for log in life.logs.observed_logs()
        if log.future is not None
        and log.topic_partition in life.node.replica_manager.hosted.online
        # A damaged log cannot be copied. It stays in use until people choose a leader, from which it is built again.
        and not ((record := cluster.checks.records.current(log.topic_partition)) and waits_for_people(cluster, record))
    ]
    deleted = [
        f"{life.name} still has {path}"
        for life in cluster.running_brokers()
        for path in life.machine.disk.folders()
        if is_being_deleted(path.rpartition("/")[2])
    ]
    return moving + deleted


def why_not_quiet(cluster: "SimulatedCluster") -> str | None:
    """Return the replica that still lags, None when every high watermark equals every log end."""
    for record in cluster.checks.records.living():
        zk = record.zk
        if zk is None or not zk.has_leader:
            if waits_for_people(cluster, record):
                continue
            return f"{record}: no leader"
        if stays_below_min_isr(cluster, record):
            continue
        if record.topic_partition.topic in cluster.checks.records.spoiled_configs:
            continue  # A leader that has never read the settings does not know how many replicas a commit needs.
        ends = {}
        starts = {}
        for broker_id in zk.isr:
            life = cluster.brokers[broker_id].life
            log = None if life is None else life.logs.get(record.topic_partition)
            if log is None:
                return f"{record}: broker {broker_id} has no log"
            ends[broker_id] = (log.log_end_offset, log.high_watermark)
            starts[broker_id] = log.log_start_offset
        leader_end = ends[zk.leader][0]
        if any(end != (leader_end, leader_end) for end in ends.values()):
            return f"{record}: log ends and high watermarks are {ends}"
        if any(start < starts[zk.leader] for start in starts.values()):
            return f"{record}: logs start at {starts}, broker {zk.leader} leads"
    return None


def _lacks_only_harmed(cluster: "SimulatedCluster", life: BrokerLife) -> bool:
    """Whether the only leaderships that a broker cannot prove are of topics whose nodes have invalid data."""
    unproved = [
        cluster.checks.records.current(topic_partition)
        for topic_partition, partition in life.node.replica_manager.hosted.online.items()
        if partition.is_leader and not partition.is_deposed and not partition.is_leadership_proved
    ]
    return bool(unproved) and all(record is not None and record.harmed for record in unproved)


def waits_for_people(cluster: "SimulatedCluster", record: PartitionRecord) -> bool:
    """Whether a partition stays offline until an operator allows an unclean election.

    Every member of its ISR has lost power or found its files damaged since it was last known to hold every committed
    record, so none may lead (docs/protocol/simulator.md#brokers-that-may-have-lost-data).
    """
    zk = record.zk
    return zk is not None and not zk.has_leader and all(cluster.brokers[member].may_have_lost_data for member in zk.isr)


def moves_only_wait(cluster: "SimulatedCluster") -> bool:
    """Whether every reassignment in the admin node waits for an operator or for a repaired topic.

    When the node was overwritten with invalid data, the controller reads it again after a running reassignment ends.
    """
    node = cluster.server.tree.get(znodes.REASSIGN_PARTITIONS)
    assert node is not None
    try:
        targets = znodes.decode_reassignment(znodes.REASSIGN_PARTITIONS, node.data)
    except MalformedZnodeError:
        return any(_is_held_up(cluster, record) for record in cluster.checks.records.living())
    records = [cluster.checks.records.current(topic_partition) for topic_partition in targets]
    return all(record is not None and (record.harmed or _is_held_up(cluster, record)) for record in records)


def _is_held_up(cluster: "SimulatedCluster", record: PartitionRecord) -> bool:
    """Whether a partition is being reassigned, and its records cannot be copied to the new replicas."""
    return record.assignment.is_being_reassigned and (
        waits_for_people(cluster, record) or _is_the_only_copy_damaged(record)
    )


def _is_the_only_copy_damaged(record: PartitionRecord) -> bool:
    """Whether the ISR has a single member with a damaged log, which also waits for an operator."""
    zk = record.zk
    return zk is not None and zk.has_leader and zk.leader in record.flipped and len(zk.isr) == 1


def stays_below_min_isr(cluster: "SimulatedCluster", record: PartitionRecord) -> bool:
    """Whether no record can be committed before an operator has decided (decision 0011).

    The ISR is one broker that found its log damaged. No replica can copy the log and join the ISR, which is smaller
    than `min.insync.replicas`. The records stay on the broker, and every send fails.
    """
    zk = record.zk
    if zk is None or not _is_the_only_copy_damaged(record):
        return False
    topic_partition = record.topic_partition
    life = cluster.brokers[zk.leader].life
    is_found = life is not None and topic_partition in life.node.replica_manager.storage.damaged_logs.damaged
    return is_found and len(zk.isr) < cluster.checks.records.min_insync_replicas(topic_partition.topic)


def leftovers(cluster: "SimulatedCluster") -> list[str]:
    """Return the logs of topics that are deleted (R17)."""
    return [
        f"{life.name} still has {log.path} of {log.topic_id}"
        for life in cluster.running_brokers()
        for log in life.logs.observed_logs()
        if log.topic_id is not None and _had_to_go(cluster, life, log.topic_id, log.topic_partition)
    ]


def _had_to_go(cluster: "SimulatedCluster", life: BrokerLife, topic_id: str, topic_partition: TopicPartition) -> bool:
    """Whether a deletion included this replica; a replica that was reassigned while its broker was down is a stray."""
    record = cluster.checks.records.get(topic_id, topic_partition)
    return record.deleted and not record.harmed and life.broker_id in record.assignment.replicas


def strays(life: BrokerLife, record: PartitionRecord) -> bool:
    """Whether a broker has a log of a partition it is not assigned."""
    log = life.logs.get(record.topic_partition)
    return log is not None and life.broker_id not in record.assignment.replicas
