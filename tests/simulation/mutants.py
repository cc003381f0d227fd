"""The mutants: each is the real code with one guard broken, and a profile in which the guard is needed often.

Each names the invariants that must detect it, so that a failure for another reason does not count. `hunt` runs them
(docs/protocol/simulator.md#mutants).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation import mutations as broken
from tests.simulation import mutations_of_groups as broken_groups
from tests.simulation import mutations_of_moves as moves
from tests.simulation import mutations_of_rare_places as rarely_broken
from tests.simulation import mutations_of_reachability as reachability
from tests.simulation import mutations_of_replicas as also_broken
from tests.simulation import mutations_of_suspicion as suspicion
from tests.simulation.profile import Profile, draw_base_profile
from tests.simulation.world import World

_NEW_REGIMES_OFF: dict[str, Any] = {
    "evictions": 0,
    "in_flight": 1,
    "lost_segments": 0,
    "retention_bytes": -1,
    "retention_ms": -1,
    "full_disks": 0,
    "slow_disks": 0,
    "hidden_listeners": 0,
    "ambushes": 0,
    "epoch_lookups": False,
    "moves": 0,
    "deaths_in_move": 0,
}
"""Profile of mutants that were written before these settings existed; keeps their runs unchanged."""


class Patches:
    """Temporarily replaced attributes."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute until `undo`."""
        self._saved.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Restore all attributes."""
        for owner, name, value in reversed(self._saved):
            setattr(owner, name, value)
        self._saved.clear()


@dataclass(frozen=True, slots=True)
class Mutant:
    """A removed or broken guard."""

    name: str
    breaks: Callable[[Patches], None]
    noticed_by: tuple[str, ...]
    budget: int = 40
    """Number of seeds within which an invariant must detect it."""
    aimed: dict[str, Any] = field(default_factory=dict)
    """Fields of the profile that make the situation frequent, which a random profile rarely reaches."""

    def profile(self, seed: int) -> Profile:
        """Return the profile of a seed, changed by ``aimed``."""
        return replace(draw_base_profile(World(seed)), **{**_NEW_REGIMES_OFF, **self.aimed})


def _aim(*kinds: str, count: int = 10, **fields: Any) -> dict[str, Any]:
    return {"fault_kinds": kinds, "fault_count": count, "operation_count": 0, **fields}


_THREE = {"brokers": 3, "replication_factor": 3, "min_insync_replicas": 2}
_LEADERS_CHANGE = _aim("kill-leader", "bounce-broker", "zk-expire", "stop-broker", count=12)
_LEADERS_DIVERGE = _aim("kill-leader", "isolate-broker", "pause-broker") | _THREE
_CONTROLLERS_CHANGE = _aim(
    "pause-controller", "zk-expire", "bad-network", "kill-active-controller", count=14, controllers=3
)
_OFFICES_CHANGE = _aim(
    "kill-active-controller", "bounce-broker", "kill-leader", "crash-broker", "bad-network", count=16, controllers=3
)
_SUSPICIONS = (
    _aim("bounce-broker", "crash-broker", "kill-leader", "kill-active-controller", count=12, controllers=3)
    | {"refused_connects": True, "false_suspicions": 12, "lease_ms": 4_000}
    | _THREE
)
_REGISTRATIONS_CHANGE = _aim("zk-expire", "bounce-broker", "cut-control", "bad-network", count=14)
_REQUESTS_COME_LATE = _aim("bad-network", "bad-network", "kill-leader", "reassign", "bounce-broker", count=16)
_REPLIES_ARE_LOST = _aim("zk-expire", "zk-lost-reply", "zk-disconnect", count=14)
_TOPICS_COME_BACK = _aim("recreate-topic", "crash-broker", "bounce-broker", "kill-active-controller")
_POWER_FAILS = _aim("power-loss", "crash-broker", "kill-active-controller", flush_messages=2**63 - 1) | _THREE
_DISKS_FILL = _aim("kill-leader", "crash-broker", count=4, full_disks=12) | _THREE
_MOVES = _aim("reassign", brokers=4, replication_factor=2, min_insync_replicas=1)
_MOVES_ARE_TAKEN_BACK = _aim(
    operation_kinds=("reassign-and-cancel", "reassign-and-retarget"),
    operation_count=14,
    brokers=5,
    replication_factor=2,
    min_insync_replicas=1,
)
_MOVES_ARE_LATE = _aim(
    "bad-network",
    "bad-network",
    "pause-broker",
    count=14,
    operation_kinds=("reassign", "reassign-and-cancel", "reassign-and-retarget"),
    operation_count=30,
    brokers=4,
    replication_factor=2,
    min_insync_replicas=1,
)
_DISKS_CHANGE = _aim("bounce-broker", "kill-leader", "isolate-broker", count=10) | {
    "moves": 24,
    "log_dirs": 2,
    "send_every_ms": 30,
}
_STOPS = _aim("stop-broker", "stop-and-lose-power", "pause-broker", count=12) | _THREE
_DISKS_FAIL = _aim("failed-write", "failed-sync", "failed-write", count=12, flush_messages=1)
_POWER_FAILS_AFTER_A_STOP = _aim("stop-and-lose-power", count=12, flush_messages=2**63 - 1)
_DELETIONS = _aim("kill-leader", "bounce-broker", operation_kinds=("delete-records",), operation_count=14)
_RETENTION = _aim("kill-leader", "bounce-broker", retention_bytes=0, checkpoint_interval_ms=500)
_CUTS = _LEADERS_DIVERGE | {
    "fault_count": 14,
    "acks_all": 1.0,
    "send_every_ms": 30,
    "segment_bytes": 1_000,
    "index_interval_bytes": 100,
}
_LEADERS_LOSE_ZOOKEEPER = (
    _aim("zk-cut", "zk-cut", "bad-network", "cut-control", count=12, acks_all=1.0, readers=3, partitions=2)
    | _THREE
    | {"send_every_ms": 30, "session_timeout_ms": 2_000, "protobuf": False}
)
"""A leader that lost ZooKeeper alone is replaced, and its followers learn of the successor at different times."""
_SENDS_ARE_REPEATED = _aim("bad-network", "kill-leader")
_ALL_BROKERS_RESTART = _aim("restart-all-brokers", count=6, in_flight=5, send_every_ms=10, acks_all=1.0) | _THREE
_GROUPS = {
    "groups": 2,
    "group_members": 2,
    "cleaner_backoff_ms": 100,
    "partitions": 2,
    "producers": 1,
    "readers": 1,
    "protobuf": False,
    "send_every_ms": 150,
    "fault_ms": 8_000,
}
_COORDINATORS_CHANGE = _aim("kill-leader", "bounce-broker", "zk-expire", "isolate-broker", count=14) | _THREE | _GROUPS
_COORDINATORS_ARE_CUT_OFF = (
    _aim("isolate-broker", "cut-control", "pause-broker", "zk-cut", "bad-network", count=14) | _THREE | _GROUPS
)
_COORDINATORS_CHANGE_SOON = (
    _aim("pause-broker", "kill-leader", "cut-replication", count=20, refused_connects=True)
    | _THREE
    | _GROUPS
    | {"replica_lag_time_max_ms": 4_000, "session_timeout_ms": 5_000, "send_every_ms": 40}
)
"""The next coordinator leads before a delayed follower has the last records of the previous coordinator, and dies
before the follower leaves the ISR.
"""
_COORDINATORS_ARE_ALONE = (
    _aim("cut-from-cluster", count=5, session_timeout_ms=2_000, lease_ms=1_500, fetch_wait_max_ms=100)
    | _THREE
    | _GROUPS
)
"""A broker that is cut off for three session timeouts answers for longer than C12 allows, unless it stops by itself."""
_MEMBERS_FAIL = _aim("bad-network", "kill-leader", count=6) | _THREE | _GROUPS | {"member_faults": 14}
_COMPACTION = _aim("bounce-broker", "kill-leader", count=6, segment_bytes=1_000, checkpoint_interval_ms=500) | _GROUPS
_DEATHS_IN_COMPACTION = (
    _aim("power-loss", count=2, segment_bytes=1_000, checkpoint_interval_ms=500, deaths_in_compaction=12)
    | _THREE
    | _GROUPS
)
_SETTINGS_ARE_LOST = _aim(
    "bounce-broker",
    operation_kinds=("spoil-settings",),
    operation_count=6,
    compacts_by_default=True,
    cleaner_backoff_ms=100,
    segment_bytes=1_000,
    checkpoint_interval_ms=500,
    flush_messages=1,
)
_LOOSE_GROUPS = (
    _COORDINATORS_CHANGE
    | {"groups": 1, "group_members": 1, "loose": 1}
    | {"offsets_retention_ms": 1_000, "cleaner_backoff_ms": 5_000}
)


def _ambush(place: str, *strikes: str, faults: tuple[str, ...], **fields: Any) -> dict[str, Any]:
    return _aim(*faults, ambushes=8, ambushed=(place,), strikes=strikes, **fields)


_MOVES_ARE_UNHEARD = _ambush(
    "an ISR write that adds a replica is applied",
    "cut-control",
    faults=(),
    operation_kinds=("reassign",),
    brokers=3,
    replication_factor=1,
    min_insync_replicas=1,
    replica_lag_time_max_ms=1_000,
    lease_ms=9_000,
) | {"operation_count": 12}
"""A leader is moved, receives no request about it, and learns from a write of its ISR that it was deposed."""
_JOINS_ARE_UNKNOWN = _ambush(
    "an ISR write that adds a replica is applied",
    "zk-cut",
    "cut-control",
    faults=("bounce-broker", "cut-replication"),
    brokers=3,
    replication_factor=2,
    min_insync_replicas=1,
    replica_lag_time_max_ms=1_000,
)
_EXPIRATIONS = (
    _ambush("committed offsets expire", "cut-replication", faults=("cut-replication", "bounce-broker"))
    | _THREE
    | _GROUPS
    | {"loose": 2, "offsets_retention_ms": 1_000, "member_faults": 6}
)

_REQUESTS_ARE_LOST = (
    _ambush("a live leader is replaced", "lose-control-requests", faults=("bounce-broker", "kill-leader"))
    | {"operation_kinds": ("elect-preferred", "reassign"), "operation_count": 14, "request_timeout_ms": 10_000}
    | {"session_timeout_ms": 2_000, "lease_ms": 1_500, "replica_lag_time_max_ms": 8_000, "fetch_wait_max_ms": 100}
    | {"brokers": 4, "replication_factor": 3, "min_insync_replicas": 2, "readers": 3}
)
"""A leader does not receive the request that names its successor, and then reaches ZooKeeper and the controller."""
_HIDDEN = (
    _aim(hidden_listeners=1, count=0, replica_lag_time_max_ms=4_000, lease_ms=1_500, session_timeout_ms=5_000)
    | _THREE
    | {"fault_ms": 15_000, "acks_all": 1.0, "send_every_ms": 80}
)
_HIDDEN_OFTEN = _HIDDEN | {"hidden_listeners": 3, "fault_ms": 20_000}
_ONE_CUT_OFF = _HIDDEN | _aim("cut-link", count=6, hidden_listeners=0)

MUTANTS: tuple[Mutant, ...] = (
    # controller
    Mutant("controller writes without checking its epoch", broken.no_fence_in_multi, ("K2",), 5),
    Mutant("controller writes states without a version condition", broken.state_write_without_version, ("R12",), 20),
    Mutant("controller sends a state before it writes it", broken.announce_before_write, ("K3",), 20),
    Mutant("controller ignores the result of a multi", broken.multi_result_ignored, ("K3", "C13"), 60),
    Mutant("controller elects outside the ISR", broken.elect_outside_isr, ("R5", "R5b", "C1", "C3"), 60),
    Mutant("controller keeps its context when it resigns", broken.keep_context, ("K7",), 60),
    Mutant("controller sends requests after it has resigned", broken.keep_sending, ("K7",), 120, _CONTROLLERS_CHANGE),
    Mutant("controller deletes any /controller node", broken.delete_foreign_controller, ("K8",), 120),
    Mutant("controller misses changes while it was disconnected", broken.no_rewatch, ("C13",), 200),
    Mutant("controller does not recognise its own /controller", broken.never_mine, ("C13", "K1", "X1"), 60),
    Mutant("controller completes reassignments without waiting", broken.reassign_at_once, ("K9",), 80, _MOVES),
    Mutant("controller empties an ISR", broken.empty_isr, ("R11", "X1"), 60),
    Mutant("controller does not resume deletions", broken.no_deletion_resume, ("C13", "R17"), 120, _TOPICS_COME_BACK),
    Mutant("controller acts on registrations read earlier", broken.captured_data, ("K11",), 60),
    Mutant(
        "controller elects a dead member of the ISR", broken.elect_a_dead_member, ("R5",), 60, _LEADERS_CHANGE | _THREE
    ),
    Mutant(
        "controller cancels a reassignment without a fence",
        broken.no_fence_before_a_move_is_taken_back,
        ("R11", "R5b", "R6"),
        300,
        _MOVES_ARE_TAKEN_BACK,
    ),
    Mutant("standby trusts its copy and not the journal", broken.journal_not_asked, ("K13",), 60, _CONTROLLERS_CHANGE),
    Mutant(
        "standby trusts the state of a leader that registered again",
        broken.reborn_leaders_trusted,
        ("K13",),
        400,
        _OFFICES_CHANGE,
    ),
    Mutant(
        "controller sends nothing to a broker without a lease",
        broken.nothing_without_lease,
        ("C13",),
        200,
        _aim(
            "cut-control",
            "cut-control",
            "kill-leader",
            operation_kinds=("create-topic-by-node", "grow-topic"),
            operation_count=10,
            lease_ms=1_500,
            session_timeout_ms=5_000,
            brokers=3,
            replication_factor=2,
            min_insync_replicas=1,
        ),
    ),
    # broker: control requests
    Mutant(
        "a log of a deleted topic blocks its name",
        also_broken.namesake_stays,
        ("C13",),
        300,
        _aim(
            "power-loss",
            "crash-broker",
            operation_kinds=("reassign", "recreate-topic", "delete-with-broker-away"),
            operation_count=14,
            brokers=4,
            replication_factor=2,
            min_insync_replicas=1,
        ),
    ),
    Mutant("broker stops replicas of any leader epoch", also_broken.stop_without_epoch, ("R2",), 300, _MOVES_ARE_LATE),
    Mutant(
        "broker accepts requests of earlier controllers", broken.any_controller_epoch, ("K4",), 400, _CONTROLLERS_CHANGE
    ),
    Mutant(
        "broker accepts requests for an earlier registration",
        broken.any_broker_epoch,
        ("K5",),
        300,
        _REGISTRATIONS_CHANGE,
    ),
    Mutant(
        "broker refuses requests for a newer registration",
        broken.no_newer_broker_epoch,
        ("K5", "C13"),
        300,
        _REPLIES_ARE_LOST,
    ),
    Mutant(
        "broker accepts requests before it is registered",
        broken.unregistered_takes_requests,
        ("K5",),
        60,
        _LEADERS_CHANGE,
    ),
    Mutant("broker accepts older leader epochs", broken.any_leader_epoch, ("R2", "R1"), 200, _REQUESTS_COME_LATE),
    Mutant(
        "broker uses the log of a deleted topic for the re-created one",
        broken.topic_id_ignored,
        ("R16", "R3b", "C13", "X1"),
        100,
        _TOPICS_COME_BACK,
    ),
    Mutant("broker moves cached metadata back", broken.metadata_goes_back, ("K6",), 400, _REQUESTS_COME_LATE),
    Mutant(
        "broker applies outdated metadata of the same controller",
        broken.overtaken_pictures,
        ("K6",),
        400,
        _REQUESTS_COME_LATE,
    ),
    # broker: high watermark and ISR
    Mutant("high watermark of the leader alone", broken.high_watermark_alone, ("R6", "R5b"), 5),
    Mutant("high watermark by majority", broken.high_watermark_by_majority, ("R6", "R5b"), 10, _THREE),
    Mutant("high watermark ignores a proposed ISR", broken.committed_isr_only, ("R6", "R5b"), 150),
    Mutant(
        "high watermark moves below min ISR", broken.high_watermark_below_min_isr, ("R7",), 20, _LEADERS_CHANGE | _THREE
    ),
    Mutant(
        "follower joins below the epoch's start",
        broken.join_below_epoch_start,
        ("R13", "R5b"),
        300,
        _LEADERS_CHANGE | _THREE,
    ),
    Mutant(
        "follower joins without a fetch in the epoch",
        broken.join_without_fetch,
        ("R13", "R5b", "X1"),
        200,
        _LEADERS_CHANGE | _THREE,
    ),
    Mutant(
        "follower joins with an earlier registration",
        broken.join_with_old_broker_epoch,
        ("R13",),
        400,
        _REGISTRATIONS_CHANGE | _THREE,
    ),
    Mutant("leader writes its ISR without a version condition", broken.isr_write_without_version, ("R12",), 40),
    Mutant(
        "leader forgets ISR members that are not assigned", broken.unassigned_not_counted, ("R6", "R5b"), 100, _MOVES
    ),
    Mutant("follower joins while it is being stopped", also_broken.join_while_leaving, ("R13",), 300, _STOPS),
    Mutant(
        "leader does not advance its high watermark when its ISR has shrunk",
        also_broken.shrink_without_another_look,
        ("R6",),
        60,
        _LEADERS_CHANGE | _THREE,
    ),
    # broker: logs and fetching
    Mutant(
        "follower asks once where an epoch ended",
        also_broken.one_round_lookup,
        ("R3b", "R3", "C13", "C5", "R5b", "R4", "X1"),
        300,
        _LEADERS_DIVERGE,
    ),
    Mutant(
        "follower of the same leader does not truncate",
        also_broken.same_leader_no_truncation,
        ("R3b", "R3", "C13", "C5", "R5b", "R4"),
        400,
        _LEADERS_CHANGE | _THREE,
    ),
    Mutant(
        "follower applies answers of other epochs", also_broken.answers_of_other_epochs, ("R10",), 300, _LEADERS_CHANGE
    ),
    Mutant(
        "leader counts a fetch that diverges",
        also_broken.diverging_fetch_counts,
        ("R3", "R5b", "R6", "R13", "R10", "C1", "C3", "R8"),
        200,
        _LEADERS_DIVERGE,
    ),
    Mutant(
        "follower applies the high watermark before it truncates",
        also_broken.high_watermark_before_truncation,
        ("R8", "R3"),
        100,
        _LEADERS_DIVERGE,
    ),
    Mutant("a leader's epoch begins with its first record", also_broken.epoch_start_forgotten, ("R4",), 5),
    Mutant(
        "a directory that failed is used as before",
        also_broken.storage_goes_on,
        ("R3b", "C5", "R14", "X1", "C13", "R3", "R5b"),
        200,
        _DISKS_FAIL,
    ),
    Mutant(
        "an orderly stop syncs nothing",
        also_broken.stop_without_sync,
        ("R14", "R5b", "R5", "C1"),
        100,
        _POWER_FAILS_AFTER_A_STOP,
    ),
    Mutant(
        "the clean-stop marker stays while a broker runs",
        also_broken.marker_kept,
        ("R14", "R5b", "R5", "C1", "C3", "R9"),
        300,
        _aim("stop-broker", "power-loss", count=14, flush_messages=2**63 - 1) | _THREE,
    ),
    Mutant(
        "a load does not notice missing segments",
        also_broken.missing_segments_unnoticed,
        ("R14",),
        40,
        _aim(count=0, lost_segments=6, segment_bytes=1_000) | _THREE,
    ),
    Mutant(
        "a high watermark above the log end is accepted",
        also_broken.high_watermark_beyond_the_log,
        ("R8", "R14"),
        100,
        _POWER_FAILS,
    ),
    Mutant(
        "follower does not truncate",
        broken.no_truncation,
        ("R3b", "R3", "C13", "C5", "R5b", "R4"),
        100,
        _LEADERS_DIVERGE,
    ),
    Mutant("follower truncates to its high watermark", broken.truncate_to_high_watermark, ("R9", "R5b", "R5"), 60),
    Mutant("follower applies any answer", broken.any_fetch_answer, ("R10",), 100, _CONTROLLERS_CHANGE),
    Mutant("leader accepts fetches of other epochs", broken.fetch_without_epoch, ("R10",), 40, _LEADERS_CHANGE),
    Mutant("epoch cache is not trimmed", broken.epochs_not_trimmed, ("R4", "R3b", "C13"), 150, _LEADERS_DIVERGE),
    Mutant("leader epochs are not stored", broken.epochs_not_assigned, ("R4", "R3b"), 60),
    Mutant(
        "an unclean restart is not reported",
        broken.unclean_restart_untold,
        ("R5", "R5b", "C1", "R9", "C3"),
        300,
        _POWER_FAILS,
    ),
    Mutant(
        "a deletion is not durable",
        broken.deletion_not_synced,
        ("R17", "C13"),
        300,
        _aim("recreate-topic", "power-loss", count=14),
    ),
    Mutant("producers are kept after a truncation", also_broken.producers_kept_after_a_cut, ("R20",), 60, _CUTS),
    Mutant("snapshots are kept above a truncation", also_broken.snapshots_kept_above_a_cut, ("R20",), 60, _CUTS),
    Mutant("the time index leads one entry too far", also_broken.time_index_one_entry_late, ("R21",), 20, _CUTS),
    Mutant("a segment that ends at a time is skipped", also_broken.segment_of_equal_time_skipped, ("R21",), 20, _CUTS),
    # broker: deleted records
    Mutant("records are deleted beyond the high watermark", also_broken.delete_uncommitted, ("R18",), 40, _DELETIONS),
    Mutant("a deletion of records is not durable", also_broken.log_starts_not_durable, ("R18",), 100, _DELETIONS),
    Mutant("follower ignores its leader's log start", also_broken.log_start_ignored, ("C13", "R18"), 40, _DELETIONS),
    Mutant("retention deletes uncommitted records", also_broken.retain_by_log_end, ("R19",), 40, _RETENTION),
    # broker: clients
    Mutant("readers get uncommitted records", broken.read_to_log_end, ("C9",), 10),
    Mutant("a send is acknowledged too early", broken.acknowledge_early, ("R7",), 10),
    Mutant(
        "repeated batches are not recognised", broken.no_duplicates_found, ("C4", "C11", "X1"), 100, _SENDS_ARE_REPEATED
    ),
    Mutant(
        "a send is acknowledged after its leader was deposed",
        also_broken.acknowledge_after_role_change,
        ("R7",),
        60,
        _LEADERS_CHANGE | _THREE,
    ),
    Mutant(
        "only the last batch of a producer is stored",
        also_broken.one_batch_remembered,
        ("C11", "C4"),
        200,
        _SENDS_ARE_REPEATED,
    ),
    Mutant(
        "followers do not store sequences",
        also_broken.sequences_lost_at_failover,
        ("C4", "C11"),
        200,
        _SENDS_ARE_REPEATED,
    ),
    Mutant(
        "a load gives one batch of each producer",
        also_broken.earlier_batches_not_loaded,
        ("C11", "C4"),
        60,
        _ALL_BROKERS_RESTART,
    ),
    Mutant("sequences are not checked", broken.no_sequences, ("C4", "C11"), 150, _SENDS_ARE_REPEATED),
    Mutant("reads wait for no proof", also_broken.answers_wait_for_no_proof, ("C12",), 20, _LEADERS_LOSE_ZOOKEEPER),
    Mutant(
        "a fetch of any ISR member proves a leadership",
        also_broken.any_member_proves_a_leadership,
        ("C12",),
        60,
        _LEADERS_LOSE_ZOOKEEPER,
    ),
    # broker: consumer groups
    Mutant(
        "a commit counts when the leader has it",
        broken_groups.commit_of_the_leader_alone,
        ("C14", "C15"),
        60,
        _COORDINATORS_CHANGE,
    ),
    Mutant(
        "a coordinator loads up to the high watermark",
        broken_groups.load_to_high_watermark,
        ("C14", "C15"),
        60,
        _COORDINATORS_CHANGE,
    ),
    Mutant(
        "a coordinator returns loaded offsets before they are committed",
        broken_groups.load_ends_uncommitted,
        ("C14", "C15"),
        60,
        _COORDINATORS_CHANGE_SOON,
    ),
    Mutant(
        "a coordinator keeps groups from an earlier leadership",
        broken_groups.groups_kept_from_earlier_leaderships,
        ("C14", "C15", "C13", "X1"),
        60,
        _COORDINATORS_CHANGE,
    ),
    Mutant(
        "a coordinator that was replaced still answers",
        broken_groups.answers_without_proof,
        ("C12",),
        60,
        _COORDINATORS_ARE_ALONE,
    ),
    Mutant(
        "a replaced static member still commits",
        broken_groups.replaced_members_count,
        ("C15",),
        20,
        _MEMBERS_FAIL | {"static_members": True},
    ),
    Mutant(
        "requests of earlier generations count",
        broken_groups.any_generation,
        ("C15",),
        100,
        _MEMBERS_FAIL | {"static_members": True},
    ),
    Mutant(
        "assignments are sent before they are stored",
        broken_groups.assignments_given_out_before_they_are_kept,
        ("C15",),
        300,
        _COORDINATORS_CHANGE | {"member_faults": 14},
    ),
    Mutant(
        "a commit is visible before it is stored",
        broken_groups.offsets_taken_over_before_they_are_kept,
        ("C14",),
        60,
        _COORDINATORS_ARE_ALONE,
    ),
    # broker: full disks
    Mutant("a full disk is a broken disk", also_broken.full_disk_is_a_broken_disk, ("R23",), 20, _DISKS_FILL),
    Mutant("a shortage of room never ends", also_broken.shortage_never_ends, ("C13",), 20, _DISKS_FILL),
    # broker: compaction
    Mutant("compaction removes uncommitted records", broken_groups.compact_uncommitted, ("R22",), 60, _COMPACTION),
    Mutant(
        "compaction gives all keys of a batch its last offset",
        broken_groups.end_of_a_batch_taken_for_all_its_keys,
        ("R22", "C14"),
        20,
        _COMPACTION,
    ),
    Mutant(
        "compaction removes tombstones at once",
        broken_groups.tombstones_removed_at_once,
        ("R22", "C14"),
        60,
        _COMPACTION | {"member_faults": 10, "offsets_retention_ms": 1_000},
    ),
    Mutant(
        "compacted segments are not durable",
        broken_groups.compacted_segments_not_synced,
        ("R22", "C14", "R14"),
        120,
        _DEATHS_IN_COMPACTION,
    ),
    Mutant(
        "a load ignores compacted segments after their swap",
        broken_groups.swap_files_ignored,
        ("R22", "R14", "C14", "R18"),
        60,
        _DEATHS_IN_COMPACTION,
    ),
    Mutant(
        "segments stay beside the one that replaces them",
        broken_groups.old_segments_kept_beside_compacted_ones,
        ("R22", "C14", "X1", "R14", "C5"),
        60,
        _COMPACTION,
    ),
    Mutant(
        "a topic is compacted under unknown settings",
        broken_groups.compaction_under_unknown_settings,
        ("R22", "C1", "C5"),
        60,
        _SETTINGS_ARE_LOST,
    ),
    # suspicion, restarted brokers, deletions
    Mutant("broker replaces any registration", suspicion.registration_without_fence, ("K15",), 40, _SUSPICIONS),
    Mutant("standby replaces any controller", suspicion.replace_any_controller, ("K1", "K8"), 300, _SUSPICIONS),
    Mutant("old evidence counts", suspicion.evidence_of_any_registration, ("K14",), 200, _SUSPICIONS),
    Mutant("no limit of suspicions", suspicion.no_limit, ("K14",), 60, _SUSPICIONS),
    Mutant("no damping of suspicions", suspicion.no_damping, ("K14",), 40, _SUSPICIONS),
    Mutant("no follower has to confirm", suspicion.weak_evidence_is_enough, ("K14",), 40, _SUSPICIONS),
    Mutant("reports of followers never end", suspicion.reports_never_end, ("K14",), 300, _SUSPICIONS),
    Mutant("a heartbeat refutes nothing", suspicion.heartbeat_refutes_nothing, ("K14", "C13"), 40, _SUSPICIONS),
    Mutant("a replica is deleted before a fenced write", suspicion.deletion_without_a_write, ("K16",), 100, _MOVES),
    # leaders that their followers cannot reach
    Mutant("an unreached broker is preferred", reachability.no_preference, ("K17", "C16"), 20, _HIDDEN),
    Mutant("an unreached broker keeps its leaderships", reachability.no_leader_moves, ("C16",), 20, _HIDDEN),
    Mutant("a broker is preferred again at once", reachability.no_hold_time, ("K17",), 100, _HIDDEN_OFTEN),
    Mutant("one follower decides who is unreached", reachability.any_report_is_enough, ("K17",), 60, _ONE_CUT_OFF),
    # rare places
    Mutant(
        "a new session proves earlier leaderships",
        rarely_broken.session_without_proof,
        ("C12",),
        60,
        _ambush("a leader begins a new session", "cut-control", faults=("zk-expire",), send_every_ms=30) | _THREE,
    ),
    Mutant(
        "an ISR write with an unknown result counts as not applied",
        rarely_broken.unknown_result_dropped,
        ("C1", "C12", "R5b", "R6"),
        100,
        _JOINS_ARE_UNKNOWN,
    ),
    Mutant(
        "a replica that may have joined need not prove a leadership",
        rarely_broken.joiners_prove_nothing,
        ("C12",),
        100,
        _JOINS_ARE_UNKNOWN,
    ),
    Mutant(
        "a lease that was renewed late proves earlier leaderships",
        rarely_broken.lease_without_proof,
        ("C12",),
        60,
        _aim("cut-control", count=16, lease_ms=1_500, send_every_ms=30, readers=3) | _THREE,
    ),
    Mutant(
        "a leader forgets that it was deposed",
        rarely_broken.deposition_forgotten,
        ("C12",),
        100,
        _MOVES_ARE_UNHEARD,
    ),
    Mutant("follower joins below the log start", rarely_broken.join_below_log_start, ("R13",), 40, _DELETIONS),
    Mutant(
        "a fetch proves the time of its arrival",
        rarely_broken.fetches_prove_their_arrival,
        ("C12",),
        60,
        _aim("pause-broker", "bad-network", "zk-cut", count=14, acks_all=0.0, producers=3, send_every_ms=30)
        | {"brokers": 3, "replication_factor": 2, "min_insync_replicas": 1, "fetch_wait_max_ms": 100}
        | {"session_timeout_ms": 2_000, "lease_ms": 1_500},
    ),
    Mutant(
        "a wait for a proof ends with an answer",
        rarely_broken.waits_end_with_an_answer,
        ("C12",),
        60,
        _LEADERS_LOSE_ZOOKEEPER | {"epoch_lookups": True},
    ),
    Mutant(
        "leader epochs are looked up without a proof",
        rarely_broken.epoch_look_ups_without_proof,
        ("C12",),
        40,
        _LEADERS_LOSE_ZOOKEEPER | {"epoch_lookups": True},
    ),
    Mutant(
        "a request that waited in a buffer confirms a leadership",
        rarely_broken.confirmation_in_doubt,
        ("C12",),
        100,
        _ambush("a leadership is announced", "pause-broker", faults=("kill-leader",))
        | {"send_every_ms": 30, "session_timeout_ms": 2_000, "lease_ms": 1_500, "fetch_wait_max_ms": 100}
        | _THREE,
    ),
    Mutant(
        "a heartbeat is contact before its broker has every request",
        rarely_broken.unanswered_requests_ignored,
        ("C12",),
        20,
        _REQUESTS_ARE_LOST,
    ),
    Mutant("offsets expire during a commit", rarely_broken.commits_in_flight_expire, ("C14",), 100, _EXPIRATIONS),
    Mutant(
        "a deletion of a group spares commits in flight",
        rarely_broken.commits_in_flight_survive_a_deletion,
        ("C14",),
        100,
        _EXPIRATIONS,
    ),
    Mutant(
        "a load restores deleted offsets",
        rarely_broken.tombstones_of_offsets_ignored,
        ("C14",),
        100,
        _LOOSE_GROUPS,
    ),
    # moves between log directories
    Mutant("a half copied log is swapped in", moves.swap_unguarded, ("R24", "R5b"), 20, _DISKS_CHANGE),
    Mutant("a moved log forgets its high watermark", moves.high_watermark_forgotten, ("R24",), 20, _DISKS_CHANGE),
    Mutant(
        "a truncation is not repeated on a future log",
        moves.truncations_not_repeated,
        ("R24", "R3", "R3b", "R9", "R5b", "C13"),
        120,
        _LEADERS_DIVERGE | {"fault_count": 14, "acks_all": 0.0, "partitions": 1, "moves": 16, "log_dirs": 2},
    ),
    Mutant(
        "a move copies a segment that has changed",
        moves.changed_segments_copied,
        ("R24", "R3", "R3b", "R9", "R5b"),
        160,
        _LEADERS_DIVERGE
        | {"fault_count": 14, "acks_all": 0.0, "partitions": 1, "moves": 16, "log_dirs": 2, "segment_bytes": 1_000},
    ),
    Mutant("a move leaves the old log", moves.old_directory_kept, ("R24",), 20, _DISKS_CHANGE),
    Mutant("readers get the future log", moves.future_log_served, ("C6", "C7", "C9", "C13", "R10"), 20, _DISKS_CHANGE),
    # pairs: each guard hides the absence of the other
    Mutant("no fence and no version in state writes", broken.no_fence_no_version, ("K2", "R12"), 5),
    Mutant(
        "broker accepts any controller and any registration",
        also_broken.any_controller_and_broker_epoch,
        ("K4", "K5"),
        300,
        _REGISTRATIONS_CHANGE,
    ),
    Mutant("min.insync.replicas is never checked", also_broken.min_isr_nowhere, ("R7",), 20, _LEADERS_CHANGE | _THREE),
    Mutant("any fetch and any response is accepted", broken.any_fetch_and_answer, ("R10",), 40, _LEADERS_CHANGE),
)
"""Budgets are a few times the number of seeds needed when the mutant was written."""
