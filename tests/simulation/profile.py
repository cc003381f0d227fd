"""Draw the profile of a run from its seed: sizes, timeouts, workload, and the kinds of possible faults.

A profile never has all faults at full strength, because the cluster would do no work and no rule would be exercised
(docs/protocol/simulator.md#profiles).
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from paceline.log.log_config import LogConfig
from paceline.model.settings import BrokerConfig, ControllerConfig, GroupConfig
from tests.simulation.operations import OPERATION_WEIGHTS
from tests.simulation.world import World

FIRST_CONTROLLER_ID = 1_000_000

FAULT_WEIGHTS: dict[str, int] = {
    "crash-broker": 6,
    "crash-controller": 4,
    "stop-broker": 3,
    "power-loss": 4,
    "pause-broker": 4,
    "pause-controller": 4,
    "zk-disconnect": 3,
    "zk-expire": 4,
    "zk-cut": 3,
    "zk-lost-reply": 4,
    "zk-lost-handshake": 2,
    "zk-down": 2,
    "isolate-broker": 4,
    "cut-link": 4,
    "cut-control": 3,
    "cut-replication": 4,
    "bad-network": 4,
    "clock-jump": 2,
    "failed-sync": 2,
    "failed-write": 2,
    "flipped-byte": 2,
    "damaged-file": 3,
    "stop-and-lose-power": 2,
    "bounce-broker": 4,
    "kill-leader": 5,
    "kill-active-controller": 4,
    "restart-all-brokers": 1,
}
"""Weights with which a profile chooses kinds of faults."""


ONLY_A_HIDDEN_LISTENER: dict[str, Any] = {
    "fault_count": 0,
    "operation_count": 0,
    "evictions": 0,
    "full_disks": 0,
    "slow_disks": 0,
    "false_suspicions": 0,
    "hidden_listeners": 1,
    "lease_ms": 1_500,
    "replica_lag_time_max_ms": 4_000,
}
"""A run in which a REPLICATION listener is the only fault, so that C16 has to hold."""


@dataclass(frozen=True, slots=True)
class Profile:
    """All settings of a run, which do not change while it runs."""

    controllers: int
    brokers: int
    replication_factor: int
    min_insync_replicas: int
    partitions: int
    producers: int
    readers: int
    acks_all: float
    """Share of producers that send with acks=all; the others send with 1 or 0."""
    send_every_ms: int
    session_timeout_ms: int
    replica_lag_time_max_ms: int
    fetch_wait_max_ms: int
    request_timeout_ms: int
    lease_ms: int
    """Time for which a broker leads without a heartbeat response; 0: no limit."""
    segment_bytes: int
    index_interval_bytes: int
    flush_messages: int
    checkpoint_interval_ms: int
    num_replica_fetchers: int
    log_dirs: int
    racks: bool
    """Whether brokers and readers are spread over two racks, and readers read from followers in their rack."""
    protobuf: bool
    """Whether messages between nodes are encoded with protobuf and decoded."""
    zk_requests_per_message: int
    zk_delay_ms: float
    fault_kinds: tuple[str, ...]
    fault_count: int
    operation_kinds: tuple[str, ...]
    operation_count: int
    fault_ms: int
    """Duration of the faults after the warm-up."""
    retention_bytes: int = -1
    retention_ms: int = -1
    full_disks: int = 0
    """Number of times that another program leaves little or no room on a broker's disk."""
    slow_disks: int = 0
    """Number of times that a disk becomes slow. With 0 a flush takes no time, else logs change meanwhile."""
    evictions: int = 0
    """Number of times that an operator deletes ``/controller``, once or twice, to force an election."""

    in_flight: int = 1
    """Batches that an idempotent producer has in flight to a partition, at most five."""
    lost_segments: int = 0
    """Number of times that a segment vanishes while its broker is stopped."""
    refused_connects: bool = False
    """Whether refused connects show a crash to controllers, as when the host still runs."""
    false_suspicions: int = 0
    """Number of times that a controller suspects a live broker, as after a reset by a middlebox."""

    hidden_listeners: int = 0
    """Number of times that no broker reaches the REPLICATION listener of a broker, as with a wrong address."""
    ambushes: int = 0
    """Number of times that faults wait for a place of `places.AMBUSHES`, and strike the brokers there."""
    ambushed: tuple[str, ...] = ()
    """The places; empty: all. For mutants; never drawn."""
    strikes: tuple[str, ...] = ()
    """The faults of each ambush, the first at the place's broker; empty: drawn. For mutants; never drawn."""

    epoch_lookups: bool = False
    """Whether a reader asks where the leader epoch of its last record ends."""

    moves: int = 0
    """Number of times that a replica moves between the directories of its broker; the brokers have two directories."""
    deaths_in_move: int = 0
    """Number of times that a broker dies in a move, by a kill or a loss of power."""

    groups: int = 0
    """Number of consumer groups; with groups, ``__consumer_offsets`` is compacted continuously."""
    group_members: int = 0
    """Members of each group."""
    member_faults: int = 0
    """Number of times that a member crashes, pauses or leaves."""
    static_members: bool = False
    """Whether members keep their membership when their process is replaced."""
    loose: int = 0
    """Groups without members, whose offsets are committed and expire one by one."""
    deaths_in_compaction: int = 0
    """Number of times that a broker dies between two steps of a compaction, by a kill or a loss of power."""
    offsets_retention_ms: int = 604_800_000
    cleaner_backoff_ms: int = 15_000
    compacts_by_default: bool = False
    """Whether brokers compact all topics without settings of their own. For a mutant; never drawn."""

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """Ids of the brokers."""
        return tuple(range(1, self.brokers + 1))

    @property
    def controller_ids(self) -> tuple[int, ...]:
        """Ids of the controllers."""
        return tuple(range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + self.controllers))

    @property
    def loose_groups(self) -> tuple[str, ...]:
        """Ids of the groups without members."""
        return tuple(f"loose-{number}" for number in range(self.loose))

    @property
    def group_ids(self) -> tuple[str, ...]:
        """Ids of all groups."""
        return tuple(f"group-{number}" for number in range(self.groups)) + self.loose_groups

    def deletes(self, group_id: str) -> bool:
        """Whether a group is deleted now and then."""
        return group_id in self.loose_groups[1:]

    @property
    def compacts(self) -> bool:
        """Whether a topic is compacted."""
        return bool(self.groups) or self.compacts_by_default

    @property
    def recovery_bound_ms(self) -> int:
        """Time within which the cluster must be complete after every fault has ended (C13)."""
        # A directory tries to append again 10 s after a write without room.
        base_ms = (
            20_000 + (11_000 if self.full_disks else 0) + 3 * self.session_timeout_ms + 3 * self.replica_lag_time_max_ms
        )
        return base_ms + (20_000 if self.groups else 0)

    @property
    def deposed_bound_ms(self) -> int:
        """Time for which a leader may answer after a successor was elected (C12).

        A leader counts heartbeats for a lease, until the request about the successor was sent; without leases only the
        end of its session elects a successor without such a request. Then fetches of its followers count for a while.
        """
        contact_ms = self.lease_ms or self.session_timeout_ms
        return contact_ms + max(min(self.session_timeout_ms, contact_ms) // 3, 3 * self.fetch_wait_max_ms)

    @property
    def unreached_bound_ms(self) -> int | None:
        """Time after which no reached replica waits for an unreached leader (C16); None when its ISR shrinks before."""
        reported_ms = max(self.replica_lag_time_max_ms // 3, 2 * self.fetch_wait_max_ms) + self.lease_ms // 3
        bound_ms = reported_ms + 1_000
        return bound_ms if self.lease_ms and bound_ms <= self.replica_lag_time_max_ms else None

    def rack(self, number: int) -> str:
        """Return the rack of a broker or reader, empty without racks."""
        return f"rack-{number % 2}" if self.racks else ""

    def broker_config(self, broker_id: int) -> BrokerConfig:
        """Settings of one broker."""
        return BrokerConfig(
            broker_id=broker_id,
            broker_rack=self.rack(broker_id) or None,
            replica_selector_class="rack-aware" if self.racks else "leader",
            zookeeper_session_timeout_ms=self.session_timeout_ms,
            replica_lag_time_max_ms=self.replica_lag_time_max_ms,
            replica_fetch_max_bytes=1_500,
            replica_fetch_response_max_bytes=4_000,
            replica_fetch_wait_max_ms=self.fetch_wait_max_ms,
            replica_fetch_backoff_ms=200,
            replica_socket_timeout_ms=self.fetch_wait_max_ms + 1_500,
            num_replica_fetchers=self.num_replica_fetchers,
            replica_high_watermark_checkpoint_interval_ms=self.checkpoint_interval_ms,
            log_flush_offset_checkpoint_interval_ms=self.checkpoint_interval_ms * 2,
            log_retention_check_interval_ms=self.checkpoint_interval_ms,
            min_insync_replicas=self.min_insync_replicas,
            request_timeout_ms=self.request_timeout_ms,
            controlled_shutdown_retry_backoff_ms=500,
            isr_propagation_interval_ms=500,
            isr_propagation_quiet_ms=700,
            isr_propagation_max_wait_ms=5_000,
            controller_broker_lease_ms=self.lease_ms,
            log_cleaner_backoff_ms=self.cleaner_backoff_ms,
            groups=self.group_config(),
        )

    def group_config(self) -> GroupConfig:
        """Settings of the group coordinators."""
        if not self.groups:
            return GroupConfig()
        return GroupConfig(
            group_min_session_timeout_ms=1_000,
            group_initial_rebalance_delay_ms=200,
            offsets_topic_replication_factor=self.replication_factor,
            offsets_topic_num_partitions=2,
            offsets_topic_segment_bytes=self.segment_bytes,
            offsets_commit_timeout_ms=1_000,
            offsets_retention_ms=self.offsets_retention_ms,
            offsets_retention_check_interval_ms=1_000,
        )

    def controller_config(self, controller_id: int) -> ControllerConfig:
        """Settings of one controller."""
        return ControllerConfig(
            controller_id=controller_id,
            zookeeper_session_timeout_ms=self.session_timeout_ms,
            request_timeout_ms=self.request_timeout_ms,
            leader_imbalance_check_interval_ms=10_000,
            controller_broker_lease_ms=self.lease_ms,
        )

    def log_config(self) -> LogConfig:
        """Settings of every log."""
        return LogConfig(
            segment_bytes=self.segment_bytes,
            index_interval_bytes=self.index_interval_bytes,
            flush_messages=self.flush_messages,
            file_delete_delay_ms=500,
            min_insync_replicas=self.min_insync_replicas,
            retention_bytes=self.retention_bytes,
            retention_ms=self.retention_ms,
            **({"min_cleanable_dirty_ratio": 0.1} if self.compacts else {}),
            **({"cleanup_policy": frozenset({"compact"})} if self.compacts_by_default else {}),
        )


def draw_profile(world: World) -> Profile:
    """Return the profile of the world's seed."""
    drawn = with_moves(world, draw_base_profile(world), (0, 0, 0, 3, 8))
    if drawn.replication_factor > 2 and world.chance("only a hidden listener").random() < 0.08:
        drawn = replace(drawn, **ONLY_A_HIDDEN_LISTENER)
    return with_groups(world, drawn, (0, 0, 0, 0, 0, 0, 1, 2))


def with_groups(world: World, profile: Profile, groups: tuple[int, ...]) -> Profile:
    """Return a profile with one of these numbers of groups."""
    chance = world.chance("groups")
    drawn = chance.choice(groups)
    if not drawn:
        return profile
    loose = world.chance("loose groups").choice((0, 1, 2))
    return replace(
        profile,
        groups=drawn,
        loose=loose,
        group_members=chance.choice((1, 2, 3, 4)),
        member_faults=chance.choice((0, 2, 6)),
        static_members=world.chance("static members").random() < 0.4,
        deaths_in_compaction=chance.choice((0, 2, 5)),
        offsets_retention_ms=chance.choice((604_800_000, 604_800_000, 5_000) if not loose else (1_000, 2_000, 5_000)),
        cleaner_backoff_ms=chance.choice((100, 500, 2_000)),
    )


def draw_base_profile(world: World) -> Profile:
    """Return the profile of the world's seed without groups."""
    chance = world.chance("profile")
    brokers = chance.choices((1, 2, 3, 4, 5), (1, 3, 10, 3, 2))[0]
    replication_factor = min(brokers, chance.choices((1, 2, 3), (1, 3, 8))[0])
    min_insync_replicas = min(replication_factor, chance.choices((1, 2, 3), (3, 8, 1))[0])
    return Profile(
        controllers=chance.choices((1, 2, 3), (2, 8, 2))[0],
        brokers=brokers,
        replication_factor=replication_factor,
        min_insync_replicas=min_insync_replicas,
        partitions=chance.choices((1, 2, 3, 5), (4, 4, 2, 1))[0],
        producers=chance.randint(1, 3),
        readers=chance.randint(1, 2),
        acks_all=chance.choice((1.0, 1.0, 0.6)),
        send_every_ms=chance.choice((30, 80, 200)),
        session_timeout_ms=chance.choice((2_000, 3_000, 5_000)),
        replica_lag_time_max_ms=chance.choice((1_000, 2_000, 4_000)),
        fetch_wait_max_ms=chance.choice((100, 300, 500)),
        request_timeout_ms=chance.choice((800, 1_500, 3_000)),
        segment_bytes=chance.choice((1_000, 3_000, 8_000)),
        index_interval_bytes=chance.choice((100, 400)),
        flush_messages=chance.choice((2**63 - 1, 2**63 - 1, 10, 1)),
        checkpoint_interval_ms=chance.choice((500, 2_000, 5_000)),
        num_replica_fetchers=chance.choices((1, 2), (4, 1))[0],
        log_dirs=chance.choices((1, 2), (2, 1))[0],
        protobuf=chance.random() < 0.15,
        zk_requests_per_message=chance.choice((1, 32)),
        zk_delay_ms=chance.choice((0.5, 2.0, 15.0)),
        lease_ms=chance.choice((1_500, 4_000, 9_000, 0)),
        fault_kinds=_pick(chance, FAULT_WEIGHTS, chance.randint(2, 6)),
        fault_count=chance.choices((0, 2, 4, 8, 14), (1, 3, 5, 5, 2))[0],
        racks=chance.random() < 0.3,
        operation_kinds=_pick(chance, OPERATION_WEIGHTS, chance.randint(1, 5)),
        operation_count=chance.choices((0, 3, 6, 10), (3, 4, 4, 2))[0],
        fault_ms=chance.choice((8_000, 15_000, 30_000)),
        retention_bytes=world.chance("retention.bytes").choices((-1, 0, 2_000, 8_000), (17, 1, 1, 1))[0],
        retention_ms=world.chance("retention.ms").choices((-1, 2_000, 10_000), (17, 1, 2))[0],
        slow_disks=world.chance("slow disks").choices((0, 1, 4), (18, 1, 1))[0],
        full_disks=world.chance("full disks").choices((0, 1, 4), (4, 1, 1))[0],
        evictions=world.chance("evictions").choices((0, 1, 3), (8, 1, 1))[0],
        in_flight=world.chance("in flight").choices((1, 5), (2, 1))[0],
        lost_segments=world.chance("lost segments").choices((0, 1, 4), (17, 2, 1))[0],
        refused_connects=world.chance("refused connects").random() < 0.5,
        ambushes=world.chance("ambushes").choices((0, 2, 6), (4, 1, 1))[0],
        false_suspicions=world.chance("false suspicions").choices((0, 1, 5), (6, 1, 1))[0],
        hidden_listeners=world.chance("hidden listeners").choices((0, 1, 3), (8, 1, 1))[0],
        epoch_lookups=world.chance("epoch look-ups").random() < 0.3,
    )


def draw_wild_profile(world: World) -> Profile:
    """Return a profile with many more faults and operations in less time, and with fewer clients.

    Such a run shows a bug about ten times sooner for the same work, but not a bug that needs a quiet period.
    """
    drawn = draw_base_profile(world)
    chance = Random(world.seed * 7919 + 1)
    faults, operations = chance.randint(2, 7), chance.randint(2, 7)
    wild = replace(
        drawn,
        fault_kinds=_joined(drawn.fault_kinds, _pick(chance, FAULT_WEIGHTS, faults)),
        operation_kinds=_joined(drawn.operation_kinds, _pick(chance, OPERATION_WEIGHTS, operations)),
        fault_count=chance.choice((8, 12, 16, 22)),
        operation_count=chance.choice((4, 8, 12, 18)),
        fault_ms=chance.choice((8_000, 12_000, 20_000)),
        send_every_ms=chance.choice((80, 200, 200, 400)),
        partitions=chance.choice((1, 1, 2, 3)),
        producers=min(drawn.producers, 2),
        readers=1,
        brokers=max(drawn.brokers, chance.choice((1, 3, 3, 4))),
        slow_disks=world.chance("slow disks").choices((0, 2, 8), (4, 1, 1))[0],
        full_disks=world.chance("full disks").choices((0, 2, 8), (2, 1, 1))[0],
        evictions=world.chance("evictions").choices((0, 2, 6), (4, 1, 1))[0],
        ambushes=world.chance("ambushes").choices((0, 4, 12), (1, 1, 1))[0],
    )
    return with_groups(world, with_moves(world, wild, (0, 6, 20)), (0, 1, 2))


def with_moves(world: World, profile: Profile, moves: tuple[int, ...]) -> Profile:
    """Return a profile with one of these numbers of moves between log directories."""
    chance = world.chance("moves between directories")
    drawn = chance.choice(moves)
    return replace(profile, moves=drawn, deaths_in_move=chance.choice((0, 1, 3)), log_dirs=2) if drawn else profile


def _joined(some: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*some, *more)))


def _pick(chance: Random, weights: dict[str, int], count: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chance.choices(list(weights), list(weights.values()), k=count)))
