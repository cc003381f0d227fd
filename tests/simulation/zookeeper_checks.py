"""Check every requested and every applied write of ZooKeeper."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.interface import Check, Create, Delete, Multi, Request, SetData, WatchType
from paceline.model.assignment import ReplicaAssignment
from paceline.model.identifiers import NO_LEADER, TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from tests.simulation.machines import BrokerLife, ControllerLife, Life
from tests.simulation.partition_record import PartitionRecord, PartitionRecords
from tests.simulation.verdicts import Verdicts
from tests.support.zookeeper.client import AppliedWrite

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster

_TOPICS = znodes.TOPICS + "/"
_BROKER_IDS = "/brokers/ids/"
_TOPIC_CONFIGS = "/config/topics/"
_QUIET = ("/brokers/seqid", "/consumers", "/config", "/cluster")

_LOOKS = 4
"""Maximum number of ISR writes between a controller's read of a complete ISR and its write that ends the reassignment.
"""


class ZooKeeperChecks:
    """K1, K2, K8, K9, K15, R2, R11, R12 and R13."""

    def __init__(self, cluster: "SimulatedCluster", verdicts: Verdicts, records: PartitionRecords) -> None:
        self._cluster = cluster
        self._verdicts = verdicts
        self._records = records
        self._lives: dict[int, Life] = {}
        self.operators: dict[int, None] = {}
        """Sessions of operators, who write nodes by hand."""
        self.controller_epoch = 0
        self._epoch_session = 0
        self._controller_owner: int | None = None
        self._replaced: tuple[int, str] | None = None
        """zxid and writer of a transaction that deleted another session's /controller, until it also writes the epoch.
        """
        self._controller_zxid = -1
        self._registered_by: dict[int, int] = {}
        """Session of every registered broker."""
        self.registered: dict[int, int] = {}
        """Broker epoch of every registered broker."""
        self.registrations: list[tuple[int, int | None]] = []
        """Every change of registrations: broker and its new broker epoch, None after the deletion."""

    def session_opened(self, life: Life, session_id: int) -> None:
        """Record the session of a process."""
        self._lives[session_id] = life

    def _writer(self, session_id: int) -> str:
        life = self._lives.get(session_id)
        return f"session {session_id:x}" if life is None else life.name

    # Requested writes

    def asked(self, life: Life, requests: Sequence[Request]) -> None:
        """Check requests before they are sent: a write without its guard is a violation even when it does no harm."""
        for request in requests:
            if isinstance(request, Multi):
                self._asked_multi(life, request)
            elif isinstance(request, SetData | Create | Delete):
                self._asked_alone(life, request)

    def _asked_multi(self, life: Life, multi: Multi) -> None:
        verdicts = self._verdicts
        touches_topics = False
        for operation in multi.operations:
            if operation.path.startswith(_TOPICS) and not isinstance(operation, Check):
                touches_topics = True
                self._has_version(life, operation)
        if touches_topics and isinstance(life, ControllerLife):
            first = multi.operations[0]
            fenced = isinstance(first, Check) and first.path == znodes.CONTROLLER_EPOCH and first.version >= 0
            verdicts.check("K2", fenced, f"{life.name} writes {multi.operations[-1].path} without a fence")
        self._asked_to_replace(life, multi)

    def _asked_to_replace(self, life: Life, multi: Multi) -> None:
        """Check that only the broker itself deletes its registration, fenced by its broker epoch node."""
        for operation in multi.operations:
            if isinstance(operation, Delete) and operation.path.startswith(_BROKER_IDS):
                broker_id = int(operation.path.removeprefix(_BROKER_IDS))
                fences = [
                    one
                    for one in multi.operations
                    if isinstance(one, SetData) and one.path == znodes.broker_epoch_path(broker_id) and one.version >= 0
                ]
                own = isinstance(life, BrokerLife) and life.broker_id == broker_id
                self._verdicts.check(
                    "K15", own and bool(fences), f"{life.name} deletes {operation.path} without a fence"
                )

    def _asked_alone(self, life: Life, operation: SetData | Create | Delete) -> None:
        if operation.path.startswith(_TOPICS):
            self._has_version(life, operation)
            if isinstance(life, ControllerLife):
                self._verdicts.check("K2", False, f"{life.name} writes {operation.path} without a fence")

    def _has_version(self, life: Life, operation: SetData | Create | Delete) -> None:
        if isinstance(operation, SetData) and operation.path.endswith("/state"):
            self._verdicts.check(
                "R12", operation.version >= 0, f"{life.name} writes {operation.path} whatever its version"
            )

    # Applied writes

    def written(self, write: AppliedWrite) -> None:
        """Check an applied change."""
        path = write.change.path
        if self._replaced is not None and self._replaced[0] != write.zxid:
            (zxid, writer), self._replaced = self._replaced, None
            self._verdicts.check(
                "K8", False, f"zxid {zxid}: {writer} deletes another's /controller without an election"
            )
        if path.startswith(_TOPICS):
            if path.endswith("/state"):
                self._state_written(write)
            elif path.count("/") == 3:
                self._topic_written(write)
        elif path.startswith("/brokers/ids/"):
            self._broker_written(write)
        elif path == znodes.CONTROLLER:
            self._controller_written(write)
        elif path == znodes.CONTROLLER_EPOCH:
            self._epoch_written(write)
        elif path.startswith(_TOPIC_CONFIGS):
            self._config_written(write)
        elif not path.startswith(_QUIET):
            self._say(write)

    def _say(self, write: AppliedWrite, more: str = "") -> None:
        change = write.change
        text = f"{change.type.name.lower()} {change.path} v{change.new_version} {more}"
        self._cluster.note("zookeeper", f"zxid {write.zxid}: {self._writer(write.session_id)} {text}")

    def _controller_written(self, write: AppliedWrite) -> None:
        self._say(write)
        if write.change.type is WatchType.CREATED:
            self._controller_owner = write.session_id
            self._controller_zxid = write.zxid
        elif write.change.type is WatchType.DELETED:
            mine = write.session_id in (self._controller_owner, *self.operators)
            writer = self._writer(write.session_id)
            if mine:
                self._verdicts.exercise("K8")
            else:
                self._replaced = write.zxid, writer
            self._controller_owner = None

    def _epoch_written(self, write: AppliedWrite) -> None:
        change = write.change
        epoch = znodes.decode_controller_epoch(change.path, change.new_data)
        self._say(write, f"epoch {epoch}")
        if change.type is WatchType.CREATED:
            self._verdicts.check("K1", epoch == 0, f"zxid {write.zxid}: the first controller epoch is {epoch}")
            return
        self._verdicts.check("K1", epoch == self.controller_epoch + 1, f"epoch {epoch} follows {self.controller_epoch}")
        together = self._controller_zxid == write.zxid and self._controller_owner == write.session_id
        self._verdicts.check("K1", together, f"zxid {write.zxid}: epoch {epoch} without its /controller")
        if self._replaced is not None and self._replaced[0] == write.zxid:
            self._replaced = None
        self.controller_epoch = epoch
        self._epoch_session = write.session_id

    def _broker_written(self, write: AppliedWrite) -> None:
        broker_id = int(write.change.path.rpartition("/")[2])
        if write.change.type is WatchType.CREATED:
            self._registered_by[broker_id] = write.session_id
            self.registered[broker_id] = write.zxid
            self.registrations.append((broker_id, write.zxid))
            self._say(write)
        elif write.change.type is WatchType.DELETED:
            owner = self._registered_by.pop(broker_id, None)
            if write.session_id not in (owner, *self.operators):
                before, now = self._lives.get(owner or 0), self._lives.get(write.session_id)
                over = before is None or before is now or before.ended
                self._verdicts.check(
                    "K15", over, f"{self._writer(write.session_id)} replaces broker {broker_id}, which lives"
                )
            self.registered.pop(broker_id, None)
            self.registrations.append((broker_id, None))
            self._say(write)

    def _config_written(self, write: AppliedWrite) -> None:
        change = write.change
        topic = change.path.removeprefix(_TOPIC_CONFIGS)
        overrides = {}
        self._records.spoiled_configs.discard(topic)
        if change.type is not WatchType.DELETED:
            try:
                overrides = znodes.decode_config(change.path, change.new_data)
            except MalformedZnodeError:
                self._verdicts.check("H26", write.session_id in self.operators, f"{self._writer(write.session_id)}")
                self._records.spoiled_configs.add(topic)
        self._say(write, str(overrides))
        self._records.configured(topic, overrides)

    def _topic_written(self, write: AppliedWrite) -> None:
        change = write.change
        topic = change.path.rpartition("/")[2]
        if change.type is WatchType.DELETED:
            self._say(write)
            self._records.topic_deleted(topic)
            return
        node = znodes.decode_topic_assignment(change.path, change.new_data)
        self._say(write, str({number: node.partitions[number].replicas for number in sorted(node.partitions)}))
        if node.topic_id is None:
            # Written by Kafka's old tools; the controller first gives the topic an id.
            known_id = self._records.topic_ids.get(topic)
            self._verdicts.check("R16", known_id is None, f"the topic id of {topic} was removed")
            return
        topic_id = node.topic_id
        known_id = self._records.topic_ids.setdefault(topic, topic_id)
        self._verdicts.check("R16", known_id == topic_id, f"topic id of {topic} changes to {topic_id}")
        for number, assignment in node.partitions.items():
            record = self._records.get(topic_id, TopicPartition(topic, number))
            self._assigned(record, assignment)

    def _assigned(self, record: PartitionRecord, assignment: ReplicaAssignment) -> None:
        before, record.assignment = record.assignment, assignment
        dropped = [replica for replica in before.replicas if replica not in assignment.replicas]
        if not dropped or record.zk is None:
            return
        removed = [replica for replica in dropped if replica in before.removing]
        if removed:
            # The leader may shrink its ISR between the controller's read and its write that ends the reassignment.
            seen = [isr for version, (*_, isr) in record.history.items() if version > record.zk.zk_version - _LOOKS]
            missing = [replica for replica in before.target if replica not in record.zk.isr]
            is_due = not missing or any(set(before.target) <= set(isr) for isr in seen)
            self._verdicts.check("K9", is_due, f"{record} drops {removed} while {missing} are not in sync")

    def _state_written(self, write: AppliedWrite) -> None:
        change = write.change
        _, _, _, topic, _, partition, _ = change.path.split("/")
        record = self._records.current(TopicPartition(topic, int(partition)))
        if change.type is WatchType.DELETED or record is None:
            self._say(write)
            return
        assert change.new_version is not None
        new = znodes.decode_partition_state(change.path, change.new_data, change.new_version).leader_and_isr
        self._cluster.note(
            "zookeeper",
            f"zxid {write.zxid}: {self._writer(write.session_id)} {record} leader {new.leader} "
            f"epoch {new.leader_epoch} isr {list(new.isr)} v{new.zk_version}",
        )
        old, record.zk = record.zk, new
        record.history[new.zk_version] = (new.leader, new.leader_epoch, new.isr)
        if new.leader >= 0:
            record.elected.setdefault(new.leader_epoch, (new.leader, self._cluster.world.now_us))
        if record.harmed:
            return
        self._shape(record, old, new)
        if old is None:
            self._verdicts.check("R2", new.leader_epoch == 0, f"{record} begins with epoch {new.leader_epoch}")
        elif isinstance(self._lives.get(write.session_id), BrokerLife):
            self._written_by_broker(record, old, new, write)
        else:
            self._written_by_controller(record, old, new)
            self._elected_alive(record, old, new, write)
        self._fenced(record, write)
        for broker_id in tuple(record.damaged):
            if broker_id not in new.isr:
                record.damaged[broker_id] = True
        self._cluster.checks.replicas.state_changed(record, old, new)

    def _shape(self, record: PartitionRecord, old: LeaderAndIsr | None, new: LeaderAndIsr) -> None:
        leader_is_in = new.leader == NO_LEADER or new.leader in new.isr
        self._verdicts.check("R11", bool(new.isr) and leader_is_in, f"{record}: leader {new.leader}, ISR {new.isr}")
        # Replicas of a completed reassignment leave one by one: unassigned replicas may remain, but none may join.
        before = () if old is None else old.isr
        strangers = [member for member in new.isr if member not in record.assignment.replicas + before]
        self._verdicts.check("R11", not strangers, f"{record}: {strangers} of {new.isr} are not assigned")

    def _written_by_broker(
        self, record: PartitionRecord, old: LeaderAndIsr, new: LeaderAndIsr, write: AppliedWrite
    ) -> None:
        life = self._lives[write.session_id]
        assert isinstance(life, BrokerLife)
        record.isr_written_in[new.zk_version] = self.registered.get(life.broker_id, -1)
        # A leader that restarts within its epoch receives the present controller epoch, and writes it.
        kept = (new.leader, new.leader_epoch) == (old.leader, old.leader_epoch) and (
            old.controller_epoch <= new.controller_epoch <= self.controller_epoch
        )
        self._verdicts.check("R2", kept, f"{record}: the ISR write of {life.name} turns {old} into {new}")
        self._verdicts.check("R12", new.leader == life.broker_id, f"{record}: {life.name} writes without leading")
        for broker_id in new.isr:
            if broker_id not in old.isr:
                self._joined(record, life, broker_id)

    def _joined(self, record: PartitionRecord, life: BrokerLife, broker_id: int) -> None:
        places = self._cluster.checks.places
        places.reach("an ISR write that adds a replica is applied", life.broker_id, broker_id)
        if record.zk is not None and len(record.zk.isr) == 2:
            places.reach("a replica joins a leader that was alone", life.broker_id, broker_id)
        hosted = life.node.replica_manager.hosted.online.get(record.topic_partition)
        follower = None if hosted is None else hosted.followers.get(broker_id)
        if record.topic_partition in life.node.replica_manager.hosted.offline:
            return  # Its directory failed during the write, so its known state is unknown.
        if hosted is None or hosted.log is None or follower is None or hosted.leader_epoch_start_offset is None:
            self._verdicts.check("R13", False, f"{record}: {life.name} admits {broker_id} without following it")
            return
        end = follower.log_end_offset
        least = max(hosted.log.high_watermark, hosted.leader_epoch_start_offset)
        text = f"{record}: {life.name} admits {broker_id} at {end}, needed {least}"
        fetched = self._cluster.checks.control.fetched_in.get((hosted, broker_id)) == hosted.leader_epoch
        # A delayed earlier fetch with a lower offset may have arrived since.
        log = record.logs.get(broker_id)
        has_it = (end is not None and end >= least) or (log is not None and log.log_end_offset >= least)
        self._verdicts.check("R13", fetched and has_it, text)
        registration = self.registered.get(broker_id)
        # A broker that is not registered now died after it caught up.
        self._verdicts.check(
            "R13",
            registration in (None, follower.broker_epoch),
            f"{record}: {life.name} admits {broker_id} of broker epoch {follower.broker_epoch}, not {registration}",
        )

    def _written_by_controller(self, record: PartitionRecord, old: LeaderAndIsr, new: LeaderAndIsr) -> None:
        self._verdicts.check(
            "R2", new.leader_epoch == old.leader_epoch + 1, f"{record}: {old.leader_epoch} becomes {new.leader_epoch}"
        )
        self._verdicts.check(
            "K2",
            new.controller_epoch == self.controller_epoch,
            f"{record}: written by controller epoch {new.controller_epoch} in {self.controller_epoch}",
        )
        if new.leader not in (NO_LEADER, old.leader):
            self._elected(record, old, new)

    def _elected_alive(
        self, record: PartitionRecord, old: LeaderAndIsr, new: LeaderAndIsr, write: AppliedWrite
    ) -> None:
        life = self._lives.get(write.session_id)
        if new.leader not in (NO_LEADER, old.leader) and isinstance(life, ControllerLife) and life.node.is_active:
            known = life.node._components.context.brokers
            self._verdicts.check(
                "R5", new.leader in known, f"{record}: {new.leader} is elected, which is not registered"
            )

    def _elected(self, record: PartitionRecord, old: LeaderAndIsr, new: LeaderAndIsr) -> None:
        log = record.logs.get(new.leader)
        if new.leader not in old.isr:
            record.elected_from_outside.add(new.leader_epoch)
        is_complete = not record.thw or (log is not None and record.has_all_committed(log.mirror))
        # A deposed leader may still accept records from clients and lose them, whatever was committed until now.
        if record.unclean_allowed and (not is_complete or new.leader not in old.isr):
            # Loss is allowed, within limits: `ClientChecks` checks the remaining records.
            record.unclean_starts[new.leader_epoch] = -1
            record.voided = record.voided or f"the unclean election of {new.leader}"
            return
        # A former member that holds every committed record may replace members that lost some:
        # docs/protocol/simulator.md#brokers-that-may-have-lost-data.
        machines = self._cluster.brokers
        replaces_damaged = is_complete and all(machines[member].may_have_lost_data for member in old.isr)
        self._verdicts.check(
            "R5",
            new.leader in old.isr or replaces_damaged or record.unclean_allowed,
            f"{record}: {new.leader} is elected from outside {old.isr}, complete: {is_complete}",
        )

    def _fenced(self, record: PartitionRecord, write: AppliedWrite) -> None:
        if not isinstance(self._lives.get(write.session_id), BrokerLife):
            mine = write.session_id == self._epoch_session
            writer = self._writer(write.session_id)
            self._verdicts.check(
                "K2", mine, f"{record}: {writer} writes, not the controller of {self.controller_epoch}"
            )
