"""Random histories of brokers, topics and sessions; rules that hold at every write, and at the end."""

import json
import logging
import random
import re

import pytest

from paceline.controller.admin.admin_requests import CreateTopics
from paceline.coordination import znodes
from paceline.coordination.interface import Create, GetData, Multi, SetData, WatchType
from paceline.model.admin import NewTopic
from paceline.model.control import LeaderAndIsrRequest, UpdateMetadataRequest
from paceline.model.identifiers import TopicPartition
from tests.support.reassignments import running_reassignments, start_reassignments
from tests.support.slow import slow_but_every
from tests.support.zookeeper.client import AppliedWrite
from tests.unit.controller.cluster import CONTROLLER_ID, SESSION_TIMEOUT_MS, Cluster, short

STATE_PATH = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state")
BROKERS = (1, 2, 3, 4)
CONTROLLERS = (CONTROLLER_ID, CONTROLLER_ID + 1)


class History:
    """One run; every choice comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = Cluster()
        self.topics = 0
        self.cluster.start_broker(*BROKERS)
        for controller_id in CONTROLLERS:
            self.cluster.start_controller(controller_id)

    def step(self) -> None:
        actions = [
            (self.create, 4),
            (self.delete, 1),
            (self.kill_or_start_broker, 4),
            (self.bounce, 1),
            (self.change_isr, 4),
            (self.reassign, 2),
            (self.disconnect, 2),
            (self.cut, 1),
            (self.heal, 2),
            (self.lose_a_reply, 2),
            (self.restart_controller, 1),
            (self.expire_controller, 1),
            (self.break_fence, 1),
            (self.silence_or_release, 1),
        ]
        action = self.chance.choices([a for a, _ in actions], [w for _, w in actions])[0]
        action()
        self.cluster.time.run_for(self.chance.choice((0, 0, 1, 50, 300, 2_000)))

    def active(self) -> list[int]:
        return [number for number, node in self.cluster.controllers.items() if node.is_active]

    def names(self) -> list[str]:
        return list(self.cluster.children(znodes.TOPICS))

    def create(self) -> None:
        self.topics += 1
        for number in self.active():
            factor = self.chance.randint(1, 3)
            topic = NewTopic(f"t{self.topics}", partitions=self.chance.randint(1, 4), replication_factor=factor)
            self.cluster.controllers[number].ask(CreateTopics((topic,), 1_000, False, reply=lambda _: None))

    def delete(self) -> None:
        names = self.names()
        if names:
            path = znodes.delete_topic_path(self.chance.choice(names))
            self.cluster.zk(Create(path), must_succeed=False)

    def kill_or_start_broker(self) -> None:
        broker_id = self.chance.choice(BROKERS)
        if broker_id in self.cluster.broker_sessions:
            self.cluster.kill_broker(broker_id)
        else:
            self.cluster.start_broker(broker_id)

    def bounce(self) -> None:
        if self.cluster.broker_sessions:
            self.cluster.bounce_broker(self.chance.choice(sorted(self.cluster.broker_sessions)))

    def partitions(self) -> list[TopicPartition]:
        found = [STATE_PATH.fullmatch(path) for path in self.cluster.server.tree.paths()]
        return [TopicPartition(match[1], int(match[2])) for match in found if match]

    def change_isr(self) -> None:
        """Let a leader shrink or grow its ISR, if the partition has a leader."""
        partitions = self.partitions()
        if not partitions:
            return
        partition = self.chance.choice(partitions)
        state = self.cluster.data(znodes.partition_state_path(partition))
        replicas = self.cluster.data(znodes.topic_path(partition.topic))["partitions"][str(partition.partition)]
        live = [r for r in replicas if r in self.cluster.broker_sessions]
        if state["leader"] not in live:
            return
        others = [r for r in live if r != state["leader"] and self.chance.random() < 0.7]
        self.cluster.change_isr(short(partition), [state["leader"], *others], notify=self.chance.random() < 0.7)

    def reassign(self) -> None:
        partitions = self.partitions()
        if not partitions:
            return
        target = tuple(self.chance.sample(BROKERS, self.chance.randint(1, 3)))
        wanted = None if self.chance.random() < 0.3 else target
        for number in self.active():
            node = self.cluster.controllers[number]
            start_reassignments(node, {self.chance.choice(partitions): wanted}, lambda _: None)

    def disconnect(self) -> None:
        self.cluster.controller_clients[self.chance.choice(CONTROLLERS)].disconnect()

    def cut(self) -> None:
        link = self.cluster.controller_clients[self.chance.choice(CONTROLLERS)].link
        link.cut(requests=self.chance.random() < 0.5, replies=True)

    def heal(self) -> None:
        for client in self.cluster.controller_clients.values():
            client.link.heal()

    def lose_a_reply(self) -> None:
        link = self.cluster.controller_clients[self.chance.choice(CONTROLLERS)].link
        link.lose_next_reply(lambda request: isinstance(request, Multi))

    def restart_controller(self) -> None:
        number = self.chance.choice(CONTROLLERS)
        if self.chance.random() < 0.5:
            self.cluster.controller_clients[number].crash()
        self.cluster.controllers[number].stop()
        self.cluster.start_controller(number, settle=False)

    def expire_controller(self) -> None:
        self.cluster.server.expire(self.cluster.controller_clients[self.chance.choice(CONTROLLERS)].session_id)

    def break_fence(self) -> None:
        data = self.cluster.zk(GetData(znodes.CONTROLLER_EPOCH)).data or b"0"
        self.cluster.zk(SetData(znodes.CONTROLLER_EPOCH, data))

    def silence_or_release(self) -> None:
        broker_id = self.chance.choice(BROKERS)
        if broker_id in self.cluster.brokers.silent:
            self.cluster.brokers.release(broker_id)
        else:
            self.cluster.brokers.silent.add(broker_id)

    def calm_down(self) -> None:
        """Repair everything and wait until the controller is idle."""
        cluster = self.cluster
        for client in cluster.controller_clients.values():
            client.link.heal()
        for broker_id in BROKERS:
            cluster.brokers.release(broker_id)
            if broker_id not in cluster.broker_sessions:
                cluster.start_broker(broker_id)
        cluster.time.run_for(4 * SESSION_TIMEOUT_MS)
        # Leaders add every replica to their ISR again, which also completes the reassignments.
        for _ in range(3):
            for partition in self.partitions():
                state = cluster.data(znodes.partition_state_path(partition))
                replicas = cluster.data(znodes.topic_path(partition.topic))["partitions"][str(partition.partition)]
                if state["leader"] >= 0:
                    cluster.change_isr(
                        short(partition), [state["leader"], *(r for r in replicas if r != state["leader"])]
                    )
            cluster.time.run_for(2_000)


def check_writes(writes: list[AppliedWrite]) -> None:
    """R2, R11, R12, K1: epochs rise by one, versions form a chain, ISRs are never empty and hold their leader."""
    states: dict[str, dict[str, object]] = {}
    epoch = 0
    for write in writes:
        change = write.change
        if change.path == znodes.CONTROLLER_EPOCH and change.new_data:
            found = int(change.new_data)
            assert found - epoch in (0, 1)
            epoch = found
        if not STATE_PATH.fullmatch(change.path):
            continue
        if change.type is WatchType.DELETED:
            states.pop(change.path, None)
            continue
        state = json.loads(change.new_data or b"")
        assert state["isr"], change
        assert state["leader"] == -1 or state["leader"] in state["isr"], change
        before = states.get(change.path)
        if before is None:
            assert (state["leader_epoch"], change.new_version) == (0, 0), change
        else:
            assert change.new_version == (change.old_version or 0) + 1
            risen = state["leader_epoch"] - before["leader_epoch"]
            assert risen in (0, 1), change
            assert risen == 1 or state["leader"] == before["leader"], "only a new epoch may change the leader"
        assert state["controller_epoch"] <= epoch, change
        states[change.path] = state


@pytest.mark.parametrize("seed", slow_but_every(4, range(20)))
def test_the_cluster_is_complete_after_any_history(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    history = History(seed)
    for _ in range(150):
        history.step()
    history.calm_down()
    cluster = history.cluster
    check_writes(cluster.writes)
    crashes = [record.getMessage() for record in caplog.records if record.exc_info]
    assert crashes == [], "no handler may fail"
    (active,) = history.active()
    node = cluster.controllers[active]
    assert cluster.data(znodes.CONTROLLER)["brokerid"] == active
    assert node.controller_epoch == cluster.data(znodes.CONTROLLER_EPOCH)
    assert cluster.children(znodes.DELETE_TOPICS) == (), "deletions have ended"
    assert running_reassignments(node) == {}, "reassignments have ended"
    assert node.gauges()["offline_partitions"] == 0
    for topic in node.describe_topics([]):
        assert topic.error is None
        for partition in topic.partitions:
            state = cluster.data(znodes.partition_state_path(TopicPartition(topic.name, partition.partition)))
            assert (partition.leader, partition.leader_epoch) == (state["leader"], state["leader_epoch"])
            assert partition.isr == tuple(state["isr"])
            assert set(partition.isr) == set(partition.replicas)
    check_brokers(cluster, active)


def check_brokers(cluster: Cluster, active: int) -> None:
    """K12: every broker's newest metadata, and newest orders, are those of ZooKeeper."""
    known: dict[tuple[int, TopicPartition], tuple[int, int]] = {}
    ordered: dict[tuple[int, TopicPartition], tuple[int, int]] = {}
    for broker_id, request in cluster.brokers.received:
        if isinstance(request, UpdateMetadataRequest):
            for told in request.partitions:
                known[broker_id, told.topic_partition] = (told.leader, told.leader_epoch)
        elif isinstance(request, LeaderAndIsrRequest):
            for order in request.partitions:
                ordered[broker_id, order.topic_partition] = (order.leader, order.leader_epoch)
    for topic in cluster.controllers[active].describe_topics([]):
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition)
            expected = (partition.leader, partition.leader_epoch)
            for broker_id in BROKERS:
                assert known[broker_id, topic_partition] == expected
            for broker_id in partition.replicas:
                assert ordered[broker_id, topic_partition] == expected
