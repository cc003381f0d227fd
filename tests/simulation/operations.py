"""Operations during the faults: create, delete, grow, configure and reassign topics, elect leaders, and make mistakes.

Each operation is an entry of the schedule. Its target is chosen at its time, from numbers drawn in advance.
`Admin.is_done` and `health.why_not_whole` check the results at the end of the run.
"""

from typing import TYPE_CHECKING

from paceline.controller.admin.admin_values import ElectionType
from paceline.coordination import znodes
from paceline.model.client_io import DeleteRecordsQuery
from paceline.model.identifiers import INTERNAL_TOPICS, TopicPartition, new_id
from tests.simulation.machines import LOG_DIRS
from tests.simulation.operator import FOREIGN, Operator
from tests.simulation.partition_record import PartitionRecord
from tests.simulation.world import MILLISECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.admin import Admin
    from tests.simulation.cluster import SimulatedCluster
    from tests.simulation.fault_schedule import Fault

MAX_PARTITIONS = 6
MAX_EXTRA_TOPICS = 3

OPERATION_WEIGHTS: dict[str, int] = {
    "reassign": 4,
    "reassign-and-cancel": 3,
    "reassign-and-retarget": 3,
    "reassign-by-node": 3,
    "grow-topic": 3,
    "elect-preferred": 3,
    "elect-preferred-by-node": 2,
    "elect-unclean": 1,
    "recreate-topic": 2,
    "delete-with-broker-away": 2,
    "create-topic-by-node": 3,
    "delete-topic-by-node": 2,
    "change-min-isr": 3,
    "change-unclean": 1,
    "throttle": 3,
    "spoil-node": 3,
    "delete-records": 4,
}
"""Weights with which a profile chooses kinds of operations."""


class Operations:
    """Executes operations; part of the fault injector."""

    _cluster: "SimulatedCluster"
    _admin: "Admin"
    _operator: Operator
    _healed: bool

    def _chance(self, fault: "Fault") -> "Random":
        return self._cluster.world.chance(f"operation/{fault.kind}/{fault.pick}/{fault.other}")

    def _topics(self) -> list[str]:
        """Return the topics that operators work on: all but the cluster's own."""
        return sorted(self._cluster.checks.records.topic_ids.keys() - INTERNAL_TOPICS)

    def _record(self, fault: "Fault") -> PartitionRecord | None:
        living = self._cluster.checks.records.living()
        return living[fault.pick % len(living)] if living else None

    def _replicas(self, chance: "Random") -> tuple[int, ...]:
        brokers = list(self._cluster.profile.broker_ids)
        chance.shuffle(brokers)
        return tuple(brokers[: max(1, min(len(brokers), self._cluster.profile.replication_factor))])

    def _soon(self, chance: "Random", do: "Callable[[], None]") -> None:
        """Run ``do`` after a random delay, in a random phase of the first operation; not after the healing."""
        delay_ms = chance.choice((2, 10, 40, 150, 600, 2_000)) * chance.uniform(0.5, 2)
        self._cluster.world.after(delay_ms * MILLISECOND, lambda: None if self._healed else do())

    # Reassignments

    def _reassign(self, fault: "Fault") -> None:
        record = self._record(fault)
        if record is not None:
            self._admin.reassign(record.topic_partition, self._replicas(self._chance(fault)))

    def _reassign_and_cancel(self, fault: "Fault") -> None:
        record = self._record(fault)
        if record is not None:
            chance = self._chance(fault)
            self._admin.reassign(record.topic_partition, self._replicas(chance))
            self._soon(chance, lambda: self._admin.reassign(record.topic_partition, None))

    def _reassign_and_retarget(self, fault: "Fault") -> None:
        record = self._record(fault)
        if record is not None:
            chance = self._chance(fault)
            first, second = self._replicas(chance), self._replicas(chance)
            self._admin.reassign(record.topic_partition, first)
            self._soon(chance, lambda: self._admin.reassign(record.topic_partition, second))

    def _reassign_by_node(self, fault: "Fault") -> None:
        """Write reassignments to the admin node; some partitions are missing, some targets are replaced by API."""
        living = self._cluster.checks.records.living()
        if not living:
            return
        chance = self._chance(fault)
        chosen = chance.sample(living, min(len(living), chance.choice((1, 1, 2))))
        targets = {record.topic_partition: self._replicas(chance) for record in chosen}
        if chance.random() < 0.2:
            targets[TopicPartition("nowhere", 0)] = self._replicas(chance)
        self._operator.move(targets)
        if chance.random() < 0.3:
            other = None if chance.random() < 0.5 else self._replicas(chance)
            self._soon(chance, lambda: self._admin.reassign(chosen[0].topic_partition, other))

    def _move_replica(self, fault: "Fault") -> None:
        """Move a replica to a directory of its broker, often slowly, and sometimes to another one soon after."""
        record = self._record(fault)
        if record is None or not record.assignment.replicas:
            return
        chance = self._chance(fault)
        broker_id = chance.choice(record.assignment.replicas)
        if chance.random() < 0.6:
            self._operator.throttle_moves(broker_id, chance.choice((100, 1_000, 4_000, 8_000)))
        self._admin.move_replica(record.topic_partition, broker_id, chance.choice(LOG_DIRS))
        if chance.random() < 0.3:
            again = chance.choice(LOG_DIRS)
            self._soon(chance, lambda: self._admin.move_replica(record.topic_partition, broker_id, again))

    # Leaders

    def _elect_preferred(self, fault: "Fault") -> None:
        record = self._record(fault)
        chosen = None if record is None or fault.other % 2 else [record.topic_partition]
        self._admin.elect(ElectionType.PREFERRED, chosen)

    def _elect_preferred_by_node(self, fault: "Fault") -> None:
        chosen = [record.topic_partition for record in self._cluster.checks.records.living()]
        if fault.other % 4 == 0:
            chosen.append(TopicPartition("nowhere", 7))
        self._operator.elect_preferred(chosen)

    def _elect_unclean(self, fault: "Fault") -> None:
        record = self._record(fault)
        if record is not None:
            self._cluster.checks.unclean_allowed(record)
            self._admin.elect(ElectionType.UNCLEAN, [record.topic_partition])

    # Topics

    def _grow_topic(self, fault: "Fault") -> None:
        topics = self._topics()
        if topics:
            topic = topics[fault.pick % len(topics)]
            known = self._cluster.checks.records.partitions_of(topic)
            if known < MAX_PARTITIONS:
                self._admin.grow(topic, min(MAX_PARTITIONS, known + 1 + fault.other % 2))

    def _recreate_topic(self, fault: "Fault") -> None:
        topics = self._topics()
        if topics:
            self._admin.recreate(topics[fault.pick % len(topics)])

    def _delete_with_broker_away(self, fault: "Fault") -> None:
        """Delete a topic while a broker is down, so that the deletion must wait and is resumed."""
        machine = list(self._cluster.brokers.values())[fault.pick % len(self._cluster.brokers)]
        chance = self._chance(fault)
        if fault.other % 2:
            machine.crash()
            self._soon(chance, lambda: self._recreate_topic(fault))
        else:
            self._recreate_topic(fault)
            self._soon(chance, machine.crash)
        self._cluster.world.after(
            (3_000 + fault.duration_ms) * MILLISECOND, lambda: None if self._healed else machine.start()
        )

    def _create_topic_by_node(self, fault: "Fault") -> None:
        """Create a topic by its node, as Kafka's old tools do, with or without a topic id."""
        name = f"n{fault.pick % MAX_EXTRA_TOPICS}"
        if name in self._cluster.checks.records.topic_ids or self._operator.exists(znodes.delete_topic_path(name)):
            return
        chance = self._chance(fault)
        placement = {number: self._replicas(chance) for number in range(chance.choice((1, 1, 2)))}
        topic_id = new_id(chance) if chance.random() < 0.5 else None
        self._operator.create_topic(name, placement, topic_id)

    def _delete_topic_by_node(self, fault: "Fault") -> None:
        """Mark an extra topic for deletion; without extra topics, a topic that does not exist."""
        extra = [topic for topic in self._topics() if topic not in self._admin.wanted]
        if not extra:
            self._operator.mark_for_deletion("nowhere")
            return
        topic = extra[fault.pick % len(extra)]
        self._cluster.checks.topic_doomed(topic)
        self._operator.mark_for_deletion(topic)

    # Settings

    def _change_min_isr(self, fault: "Fault") -> None:
        value = 1 + fault.other % self._cluster.profile.replication_factor
        self._configure(fault, {"min.insync.replicas": str(value)})

    def _change_unclean(self, fault: "Fault") -> None:
        self._configure(fault, {"unclean.leader.election.enable": "true" if fault.other % 3 else "false"})

    def _throttle(self, fault: "Fault") -> None:
        """Throttle the replication of a topic at random brokers."""
        lists = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
        self._configure(fault, dict.fromkeys(lists, "*"))
        chance = self._chance(fault)
        for broker_id in self._cluster.profile.broker_ids:
            if chance.random() < 0.6:
                self._operator.throttle(broker_id, chance.choice((0, 200, 2_000, 20_000)))

    def _configure(self, fault: "Fault", overrides: dict[str, str]) -> None:
        topics = self._topics()
        if not topics:
            return
        topic = topics[fault.pick % len(topics)]
        if self._cluster.profile.compacts_by_default:
            overrides = {**overrides, "cleanup.policy": "delete"}
        if self._chance(fault).random() < 0.5:
            self._admin.configure(topic, overrides)
        else:
            self._operator.configure(topic, overrides)

    # Records

    def _delete_records(self, fault: "Fault") -> None:
        """Request a deletion up to a random offset, sometimes an uncommitted offset, sometimes from a wrong broker."""
        record = self._record(fault)
        if record is None or record.zk is None or not record.zk.has_leader:
            return
        chance = self._chance(fault)
        before = chance.choice(
            (
                None,
                record.thw,
                max(0, record.thw - chance.randint(0, 5)),
                int(record.thw * chance.random()),
                int(record.thw * chance.random()),
                record.thw + chance.randint(1, 5),
            )
        )
        broker_id = record.zk.leader
        if chance.random() < 0.1:
            broker_id = chance.choice(self._cluster.profile.broker_ids)
        epoch = record.zk.leader_epoch if chance.random() < 0.5 else None
        self._admin.delete_records(
            DeleteRecordsQuery(record.topic_partition, record.topic_id, before, epoch), broker_id
        )

    # Mistakes

    def _spoil_node(self, fault: "Fault") -> None:
        """Write invalid data to a node; only the topic of the node may be harmed."""
        chance = self._chance(fault)
        data = chance.choice(FOREIGN)
        extra = [topic for topic in self._topics() if topic not in self._admin.wanted]
        kind = chance.randrange(10)
        if kind == 0 or (kind <= 3 and not extra):
            self._spoil(znodes.topic_path("spoilt"), data)
        elif kind == 1:
            self._cluster.checks.topic_harmed(extra[fault.pick % len(extra)])
            self._spoil(znodes.topic_path(extra[fault.pick % len(extra)]), data)
        elif kind == 2:
            self._cluster.checks.topic_harmed(extra[fault.pick % len(extra)])
            self._spoil(znodes.partition_state_path(TopicPartition(extra[fault.pick % len(extra)], 0)), data)
        elif kind == 3:
            self._spoil(znodes.topic_config_path(extra[fault.pick % len(extra)]), data)
            self._spoil(znodes.CONFIG_CHANGE_PREFIX, data, sequential=True)
        elif kind == 4:
            self._spoil(znodes.REASSIGN_PARTITIONS, data)
        elif kind == 5:
            self._spoil(znodes.PREFERRED_REPLICA_ELECTION, data)
        elif kind == 6:
            self._spoil(znodes.ISR_CHANGE_PREFIX, data, sequential=True)
        elif kind == 7:
            self._spoil(znodes.LOG_DIR_EVENT_PREFIX, data, sequential=True)
        elif kind == 8:
            self._spoil(znodes.CONTROLLER_JOURNAL, data)
        else:
            self._spoil(znodes.CONFIG_CHANGE_PREFIX, data, sequential=True)

    def _spoil_settings(self, fault: "Fault") -> None:
        """Overwrite a topic's settings with invalid data, then restart a broker, which must work without them."""
        topics = self._topics()
        if topics:
            topic = topics[fault.pick % len(topics)]
            self._spoil(znodes.topic_config_path(topic), self._chance(fault).choice(FOREIGN))
            machine = list(self._cluster.brokers.values())[fault.other % len(self._cluster.brokers)]
            machine.stop(restart_after_ms=100)

    def _spoil(self, path: str, data: bytes, sequential: bool = False) -> None:
        self._cluster.checks.verdicts.exercise("H26")
        self._operator.spoil(path, data, sequential)
