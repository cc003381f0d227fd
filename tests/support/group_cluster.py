"""Group coordinators over logs in memory: appends can be delayed or fail, and coordinators fail over."""

import itertools
from collections.abc import Callable
from typing import Any

from paceline.broker.groups.coordinator import GroupCoordinator
from paceline.broker.groups.records import OffsetValue
from paceline.broker.groups.requests import (
    CommitRequest,
    JoinRequest,
    JoinResult,
    LeavingMember,
    Protocol,
    SyncRequest,
)
from paceline.log.record_batch import parse_header, stamp
from paceline.model.consumer_protocol import Subscription, encode_subscription
from paceline.model.errors import MemberIdRequiredError, NotLeaderOrFollowerError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.settings import GroupConfig
from tests.support.virtual_time import VirtualTime

CONFIG = GroupConfig(group_initial_rebalance_delay_ms=0)
SESSION_MS = 10_000
REBALANCE_MS = 60_000
GROUP = "g"


class OffsetsLog:
    """A partition of the offsets topic, shared by all brokers; ``high_watermark`` lags while appends are held."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.end = 0
        self.high_watermark = 0
        self.leader = 0
        self.leader_epoch = 0

    def append(self, batch: bytes) -> int:
        """Append and return the base offset."""
        data, base = bytearray(batch), self.end
        stamp(data, base, self.leader_epoch)
        self.batches.append((base, bytes(data)))
        self.end = base + parse_header(data).last_offset_delta + 1
        return base


class TopicOfBroker:
    """Stands in for the `HostedOffsetsTopic` of one broker."""

    def __init__(self, cluster: "GroupCluster", broker_id: int) -> None:
        self._cluster, self._broker_id = cluster, broker_id

    def partition_count(self) -> int | None:
        return 1 if self._cluster.topic_exists else None

    def leader_of(self, partition: int) -> int | None:
        return self._cluster.log.leader

    def leads(self, partition: int, leader_epoch: int) -> bool:
        log = self._cluster.log
        return (log.leader, log.leader_epoch) == (self._broker_id, leader_epoch)

    def is_known(self, topic_partition: TopicPartition) -> bool:
        return topic_partition not in self._cluster.missing

    def bounds(self, partition: int) -> tuple[int, int, int]:
        log = self._cluster.log
        if log.leader != self._broker_id:
            raise NotLeaderOrFollowerError("another broker leads")
        return 0, log.high_watermark, log.end

    def read(self, partition: int, offset: int, max_bytes: int, limit_offset: int) -> bytes:
        found = b""
        for base, batch in self._cluster.log.batches:
            if base < offset:
                continue
            if found and len(found) + len(batch) > max_bytes:
                break
            found += batch
        return found

    def check_room(self, partition: int) -> None:
        if self._cluster.room_error is not None:
            raise self._cluster.room_error

    def append(
        self, partition: int, leader_epoch: int, batch: bytes, on_done: Callable[[int | PacelineError], None]
    ) -> None:
        cluster = self._cluster
        if cluster.append_error is not None:
            on_done(cluster.append_error)
            return
        base = cluster.log.append(batch)

        def replicated() -> None:
            cluster.log.high_watermark = max(cluster.log.high_watermark, cluster.log.end)
            on_done(base)

        if cluster.hold_appends:
            cluster.held.append((on_done, replicated))
        else:
            replicated()

    def create(self) -> None:
        self._cluster.creations += 1


class GroupCluster:
    """Coordinators on several brokers, which lead the single partition of the offsets topic in turn."""

    def __init__(self, config: GroupConfig = CONFIG) -> None:
        self.time = VirtualTime()
        self.config = config
        self.log = OffsetsLog()
        self.topic_exists = True
        self.creations = 0
        self.missing: set[TopicPartition] = set()
        self.append_error: PacelineError | None = None
        self.room_error: PacelineError | None = None
        self.hold_appends = False
        self.held: list[tuple[Callable[[int | PacelineError], None], Callable[[], None]]] = []
        self._suffixes = itertools.count(1)
        self._next_broker = 0
        self.coordinator = self._elect()
        self.run()

    def _elect(self) -> GroupCoordinator:
        self._next_broker += 1
        coordinator = GroupCoordinator(
            self.config,
            self.time,
            TopicOfBroker(self, self._next_broker),
            lambda: f"{next(self._suffixes):04}",
        )
        self.log.leader, self.log.leader_epoch = self._next_broker, self.log.leader_epoch + 1
        coordinator.start()
        coordinator.become_leader(0, self.log.leader_epoch)
        return coordinator

    def fail_over(self, run: bool = True, lose_uncommitted: bool = False) -> None:
        """Make another broker leader; appends in flight fail with NOT_LEADER_OR_FOLLOWER, written or not."""
        if lose_uncommitted:
            self.log.batches = [one for one in self.log.batches if one[0] < self.log.high_watermark]
            self.log.end = self.log.high_watermark
        deposed = self.coordinator
        self.coordinator = self._elect()
        deposed.become_follower(0)
        held, self.held = self.held, []
        for on_done, _ in held:
            on_done(NotLeaderOrFollowerError("deposed"))
        self.log.high_watermark = self.log.end
        if run:
            self.run()

    def release_appends(self) -> None:
        """Replicate the appends that are held."""
        self.hold_appends = False
        held, self.held = self.held, []
        for _, replicated in held:
            replicated()

    def run(self) -> None:
        """Run due callbacks without advancing the time."""
        self.time.run_due()

    # Requests

    def join(
        self,
        member_id: str = "",
        instance_id: str | None = None,
        topics: tuple[str, ...] = ("t",),
        protocols: tuple[str, ...] = ("range",),
        session_ms: int = SESSION_MS,
        group_id: str = GROUP,
    ) -> list[Any]:
        """Send JoinGroup; a new dynamic member repeats it with its id. The returned list receives the responses."""
        answers: list[Any] = []
        metadata = encode_subscription(Subscription(topics))
        request = JoinRequest(
            group_id,
            member_id,
            instance_id,
            "client",
            "/127.0.0.1",
            REBALANCE_MS,
            session_ms,
            "consumer",
            tuple(Protocol(name, metadata) for name in protocols),
        )
        self.coordinator.join(request, answers.append)
        if answers and isinstance(answers[0], MemberIdRequiredError):
            return self.join(answers[0].metadata["member_id"], None, topics, protocols, session_ms, group_id)
        return answers

    def sync(
        self,
        joined: JoinResult,
        assignments: dict[str, bytes] | None = None,
        instance_id: str | None = None,
    ) -> list[Any]:
        """Send SyncGroup."""
        answers: list[Any] = []
        request = SyncRequest(GROUP, joined.generation, joined.member_id, instance_id, None, None, assignments or {})
        self.coordinator.sync(request, answers.append)
        return answers

    def heartbeat(self, joined: JoinResult, instance_id: str | None = None) -> PacelineError | None:
        """Send a heartbeat and return its error."""
        try:
            self.coordinator.heartbeat(GROUP, joined.generation, joined.member_id, instance_id)
        except PacelineError as error:
            return error
        return None

    def leave(self, *member_ids: str) -> list[PacelineError | None]:
        """Send LeaveGroup."""
        return self.coordinator.leave(GROUP, [LeavingMember(one, None) for one in member_ids])

    def commit(self, offset: int, joined: JoinResult | None = None, partition: int = 0, topic: str = "t") -> list[Any]:
        """Commit an offset, as a member or without membership."""
        answers: list[Any] = []
        value = OffsetValue(offset, 3, "note", self.time.wall_ms())
        generation, member_id = (-1, "") if joined is None else (joined.generation, joined.member_id)
        tp = TopicPartition(topic, partition)
        self.coordinator.commit(CommitRequest(GROUP, generation, member_id, None, {tp: value}), answers.append)
        return answers

    def committed(self, partition: int = 0, topic: str = "t") -> int | None:
        """Return a committed offset."""
        tp = TopicPartition(topic, partition)
        value = self.coordinator.fetch_offsets(GROUP, [tp])[tp]
        return None if value is None else value.offset

    def state(self) -> str:
        """Return the state of the group."""
        return self.coordinator.describe(GROUP).state

    def stable(self, count: int) -> list[JoinResult]:
        """Bring a group with this number of members to STABLE; return their joins, the leader's first."""
        answers = self.join()
        while len(answers) == 1 and answers[0].generation >= 0 and count > 1:
            return self._stable_of(answers[0], count)
        self.sync(answers[0], {answers[0].member_id: b"a"})
        return [answers[0]]

    def _stable_of(self, leader: JoinResult, count: int) -> list[JoinResult]:
        self.sync(leader, {leader.member_id: b"a"})
        others = [self.join() for _ in range(count - 1)]
        again = self.join(leader.member_id)
        joined = [again[0], *(one[0] for one in others)]
        assignments = {one.member_id: f"a{place}".encode() for place, one in enumerate(joined)}
        for one in joined[1:]:
            self.sync(one)
        self.sync(joined[0], assignments)
        assert self.state() == "STABLE"
        return joined
