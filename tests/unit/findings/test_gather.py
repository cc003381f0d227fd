"""The gathered facts are those of the brokers; a process that does not answer becomes a fact."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from paceline.findings.explain import FindingKind, explain
from paceline.findings.facts import PartitionFacts
from paceline.findings.service.gather import HISTORY_KINDS, _isr_times, gather
from paceline.model.client_io import RequiredAcks
from paceline.model.errors import NotControllerError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChange, StateChangeKind
from paceline.rpc.convert.partition_replicas import partition_replicas_to_proto
from paceline_client import AwaitedReplica, ConfigEntry, PartitionDescription, Reassignment, TopicDescription
from paceline_client.admin import ClusterDescription, PartitionReplicasDescription, _replicas
from paceline_client.metadata import Broker
from tests.support.broker_cluster import CONTROLLER_ID, TP, BrokerCluster

ISR = (1, 2, 3)


class Asked:
    """The calls of `Admin`, answered by the brokers of a `BrokerCluster`."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.cluster = cluster
        self.silent: set[int] = set()
        self.partition = PartitionDescription(0, 1, 0, ISR, ISR)
        self.calls: list[str] = []
        self.controller_events: list[StateChange] = []
        self.reassignments: list[Reassignment] = []
        self.has_controller = True

    def until_isr_shrinks(self) -> None:
        """Append a record that the broken follower lacks; a follower at the leader's log end would stay in the ISR."""
        self.cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
        self.cluster.time.run_until(lambda: len(self.cluster.state().isr) == 2, 20_000)
        self.cluster.time.run_for(100)

    def facts(self) -> PartitionFacts:
        described: Any = TopicDescription(TP.topic, "", (self.partition,))
        (facts,) = gather(self, described)  # type: ignore[arg-type]
        return facts

    def kinds(self) -> list[FindingKind]:
        return [found.kind for found in explain(self.facts(), self.cluster.time.wall_ms())]

    def sentence(self) -> str:
        return explain(self.facts(), self.cluster.time.wall_ms())[0].sentence

    def describe_cluster(self) -> ClusterDescription:
        alive = tuple(Broker(one, "h", 1) for one, broker in self.cluster.brokers.items() if broker.up)
        return ClusterDescription("id", alive, CONTROLLER_ID, 1, "", "", 1)

    def describe_hosts(self, topics: object, timeout_ms: int) -> dict[int, Any]:
        found: dict[int, dict[Any, PartitionReplicasDescription]] = {}
        for broker_id, broker in self.cluster.brokers.items():
            if broker.up:
                views = [] if broker_id in self.silent else broker.node.describe_replicas(TP.topic, [0])
                described = (_replicas(partition_replicas_to_proto(view)) for view in views)
                found[broker_id] = {TopicPartition(one.topic, one.partition): one for one in described}
        return found

    def _ask_controller(self, name: str) -> None:
        self.calls.append(name)
        if not self.has_controller:
            raise NotControllerError("no active controller")

    def describe_configs(self, topic: str, keys: Iterable[str], *, timeout_ms: int) -> dict[str, list[ConfigEntry]]:
        self._ask_controller("configs")
        return {topic: [ConfigEntry(key, value, "DEFAULT") for key, value in zip(keys, ("2", "false"), strict=True)]}

    def list_partition_reassignments(self, where: object, *, timeout_ms: int) -> list[Reassignment]:
        self._ask_controller("reassignments")
        return self.reassignments

    def past_events(
        self, *, topics: list[str], kinds: object, broker_id: int | None, timeout_ms: int
    ) -> list[StateChange]:
        self.calls.append(f"events of {broker_id}")
        if broker_id is None:
            return self.controller_events
        if broker_id in self.silent:
            raise RequestTimedOutError("no answer")
        return self.cluster[broker_id].said(*HISTORY_KINDS)


@pytest.fixture
def asked() -> Asked:
    """Three brokers in sync with one record, led by broker 1 in leader epoch 0."""
    cluster = BrokerCluster(replica_lag_time_max_ms=2_000)
    cluster.decide(1, 0, ISR, is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(*ISR)
    cluster.time.run_until(lambda: all(cluster[one].log().high_watermark == 1 for one in ISR), 5_000)
    return Asked(cluster)


def test_the_facts_of_a_healthy_partition_are_those_of_its_brokers(asked: Asked) -> None:
    facts = asked.facts()
    assert (facts.leader, facts.leader_epoch, facts.isr, facts.controller) == (1, 0, ISR, CONTROLLER_ID)
    assert [(one.log_end_offset, one.high_watermark, one.log_start_offset) for one in facts.replicas] == [(1, 1, 0)] * 3
    assert [one.applied_leader_epoch for one in facts.replicas] == [0] * 3
    assert all(one.answers and one.alive for one in facts.brokers)
    assert asked.kinds() == [FindingKind.HEALTHY]
    assert asked.calls == []


def test_a_follower_that_cannot_fetch_is_named_with_the_time_of_the_isr_change(asked: Asked) -> None:
    asked.cluster.cuts.add((3, 1))
    asked.until_isr_shrinks()
    (shrunk,) = asked.cluster[1].said(StateChangeKind.ISR_SHRUNK)
    facts = asked.facts()
    assert (facts.isr, facts.isr_since_ms) == ((1, 2), shrunk.wall_ms)
    age_ms = facts.replicas[2].last_fetch_ago_ms
    assert age_ms is not None
    assert asked.sentence().endswith(f" UTC, because broker 3 has not fetched for {age_ms / 1000:.1f} s")
    assert set(asked.calls) == {"events of 1", "events of None"}


def test_a_paused_follower_is_named_twice_and_its_offsets_are_those_that_the_leader_knows(asked: Asked) -> None:
    asked.silent.add(3)
    facts = asked.facts()
    assert facts.replicas[2].log_end_offset == 1
    assert asked.sentence() == "orders/0 is known in part: broker 3 has not answered"


def test_the_log_end_is_that_which_the_leader_knows_because_the_high_watermark_depends_on_it(asked: Asked) -> None:
    hosts = asked.describe_hosts(None, 0)
    (own,) = hosts[3][TP].replicas
    hosts[3][TP] = replace(hosts[3][TP], replicas=(replace(own, log_end_offset=9, high_watermark=8),))
    asked.describe_hosts = lambda _topics, _timeout_ms: hosts  # type: ignore[method-assign]
    third = asked.facts().replicas[2]
    assert (third.log_end_offset, third.high_watermark) == (1, 8)


def test_a_leader_that_does_not_answer_leaves_the_metadata(asked: Asked) -> None:
    asked.silent.add(1)
    facts = asked.facts()
    assert (facts.leader, facts.isr, facts.min_insync_replicas) == (1, ISR, 2)
    assert [one.log_end_offset for one in facts.replicas] == [None, 1, 1]
    assert asked.sentence() == "orders/0 may take no reads and writes, because its leader, broker 1, has not answered"


def test_a_dead_broker_is_not_asked_and_not_silent(asked: Asked) -> None:
    asked.cluster[3].crash()
    asked.until_isr_shrinks()
    assert asked.facts().brokers[2].answers is None
    assert asked.sentence().endswith("because broker 3 is not alive")


def test_a_partition_without_a_leader_is_explained_by_its_settings_and_the_event(asked: Asked) -> None:
    asked.cluster[1].crash()
    asked.partition = replace(asked.partition, leader=None, leader_epoch=1, isr=(1,), offline_replicas=(1,))
    offline = StateChange(who="c", wall_ms=60_000, topic_partition=TP, to_state="OfflinePartition")
    asked.controller_events = [offline, replace(offline, wall_ms=61_000)]
    assert asked.facts().leader_since_ms == 60_000
    assert asked.sentence().endswith(
        "because no member of its ISR (1) is online and unclean.leader.election.enable is false: broker 1 is not alive"
    )
    elected = replace(offline, wall_ms=62_000, kind=StateChangeKind.LEADER_ELECTED)
    asked.controller_events.append(elected)
    assert asked.facts().leader_since_ms is None


def test_without_a_controller_its_facts_are_missing(asked: Asked) -> None:
    asked.has_controller = False
    asked.partition = replace(asked.partition, leader=None, leader_epoch=1)
    facts = asked.facts()
    assert (facts.min_insync_replicas, facts.controller) == (None, None)
    assert asked.calls == ["configs"]
    assert asked.sentence() == "orders/0 has no leader, because there is no active controller to elect one"


def test_a_replica_whose_log_directory_failed_says_so(asked: Asked) -> None:
    asked.cluster[3].node.replica_manager.hosted.set_offline(TP)
    asked.until_isr_shrinks()
    assert asked.facts().replicas[2].directory_offline
    assert asked.sentence().endswith("because the log directory of broker 3 has failed")


def test_a_leader_that_cannot_prove_its_leadership_is_quoted(asked: Asked) -> None:
    asked.cluster[1].node.replica_manager.hosted.online[TP].end_leadership()
    assert asked.sentence() == (
        "orders/0 may take no reads and writes, because broker 1 no longer leads orders/0: its epoch 0 is over"
    )


def test_a_follower_with_an_old_leader_epoch_is_a_fact(asked: Asked) -> None:
    asked.cluster.send(1, asked.cluster.partition(1, 4, ISR))
    asked.partition = replace(asked.partition, leader_epoch=4)
    assert [one.applied_leader_epoch for one in asked.facts().replicas] == [4, 0, 0]
    assert asked.kinds().count(FindingKind.CONTROL_PENDING) == 2


def test_a_refused_fetch_is_the_reason_until_the_follower_fetches(asked: Asked) -> None:
    asked.cluster.cuts.add((3, 1))
    asked.cluster.decide(1, 4, ISR)
    asked.until_isr_shrinks()
    fenced = StateChange(who="b", wall_ms=0, kind=StateChangeKind.FETCH_FENCED, topic_partition=TP, replica=3)
    refused = replace(fenced, leader_epoch=4, cause="the leader refused the fetch of broker 3: epoch 3")
    asked.controller_events = [refused]
    assert asked.sentence().endswith("because the leader refused the fetch of broker 3: epoch 3")
    asked.controller_events = [replace(refused, leader_epoch=3)]
    assert asked.sentence().endswith("because broker 3 has not fetched in leader epoch 4")
    asked.controller_events = [refused]
    asked.cluster.cuts.clear()
    asked.cluster.time.run_until(lambda: asked.facts().replicas[2].last_fetch_ago_ms is not None, 20_000)
    assert asked.facts().replicas[2].fetch_refused is None


def test_a_reassignment_has_the_reasons_of_the_controller(asked: Asked) -> None:
    moving = replace(asked.cluster.partition(1, 4, ISR), adding_replicas=(3,), removing_replicas=(2,))
    asked.cluster.send(1, moving)
    asked.cluster.send(2, moving)
    asked.cluster.send(3, moving)
    asked.cluster.time.run_for(600)
    assert asked.kinds().count(FindingKind.REASSIGNMENT) == 1
    waiting = (AwaitedReplica(3, "BROKER_DEAD", "broker 3 is not registered"),)
    asked.reassignments = [Reassignment(TP, ISR, (3,), (2,), ISR, 1, waiting)]
    stuck = "orders/0 is being reassigned (adds 3, removes 2) and does not get on, because broker 3 is not registered"
    assert asked.sentence() == stuck


def isr_event(second: int, isr: tuple[int, ...], old: tuple[int, ...] | None = None) -> StateChange:
    kind = StateChangeKind.BECAME_LEADER if old is None else StateChangeKind.ISR_SHRUNK
    return StateChange(who="b", wall_ms=second, kind=kind, topic_partition=TP, isr=isr, old_isr=old)


@pytest.mark.parametrize(
    ("events", "isr", "least", "expected"),
    [
        ([], (1,), 2, (None, None)),
        ([isr_event(1, (1,))], (1,), 2, (None, None)),
        ([isr_event(1, (1,), (1, 2))], (1,), 2, (1, 1)),
        ([isr_event(1, (1, 2, 3)), isr_event(5, (1,))], (1,), 2, (5, 5)),
        ([isr_event(1, (1, 2), (1, 2, 3)), isr_event(5, (1,), (1, 2))], (1,), 3, (5, 1)),
        ([isr_event(1, (1,), (1, 2)), isr_event(5, (1, 2), (1,))], (1, 2), 2, (5, None)),
        ([isr_event(1, (1,), (1, 2)), isr_event(2, (1,))], (1,), 2, (1, 1)),
        ([isr_event(1, (2,), (1, 2))], (1,), 2, (None, None)),
        ([isr_event(4, (1,), (1, 2))], (1,), None, (4, None)),
    ],
)
def test_the_times_of_an_isr(
    events: list[StateChange], isr: tuple[int, ...], least: int | None, expected: tuple[int | None, int | None]
) -> None:
    assert _isr_times(events, isr, least) == expected
