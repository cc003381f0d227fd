"""Committed offsets: permission to commit, failovers of the coordinator, deletion, expiry (docs/protocol/groups.md)."""

import pytest

from paceline.model.errors import (
    CoordinatorNotAvailableError,
    LogDirFullError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    PacelineError,
    RequestTimedOutError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.settings import GroupConfig
from tests.support.group_cluster import GROUP, SESSION_MS, GroupCluster
from tests.unit.broker.groups.test_membership import code

RETENTION_MS = 1_000_000
CHECK_MS = 10_000
EXPIRING = GroupConfig(
    group_initial_rebalance_delay_ms=0,
    offsets_retention_ms=RETENTION_MS,
    offsets_retention_check_interval_ms=CHECK_MS,
)


def test_commit_of_a_member_is_fetched() -> None:
    cluster = GroupCluster()
    (only,) = cluster.stable(1)
    (results,) = cluster.commit(5, only)
    assert results == {TopicPartition("t", 0): None}
    assert cluster.committed() == 5
    assert cluster.committed(partition=1) is None


def test_caller_without_membership_commits_only_while_the_group_is_empty() -> None:
    cluster = GroupCluster()
    cluster.commit(5)
    (only,) = cluster.stable(1)
    assert code(cluster.commit(6)[0]) == "UNKNOWN_MEMBER_ID"
    cluster.leave(only.member_id)
    cluster.commit(7)
    assert cluster.committed() == 7


def test_commit_while_assignments_are_awaited_is_refused() -> None:
    cluster = GroupCluster()
    (joined,) = cluster.join()
    assert code(cluster.commit(5, joined)[0]) == "REBALANCE_IN_PROGRESS"


def test_commit_is_not_visible_before_the_in_sync_replicas_have_it() -> None:
    cluster = GroupCluster()
    cluster.hold_appends = True
    answers = cluster.commit(5)
    assert answers == []
    assert cluster.committed() is None
    cluster.release_appends()
    assert answers == [{TopicPartition("t", 0): None}]
    assert cluster.committed() == 5


def test_commit_that_was_not_replicated_is_refused_and_not_visible() -> None:
    cluster = GroupCluster()
    cluster.commit(3)
    cluster.append_error = NotCoordinatorError("deposed")
    (results,) = cluster.commit(5)
    assert isinstance(results[TopicPartition("t", 0)], PacelineError)
    assert cluster.committed() == 3


def test_two_commits_in_flight_take_effect_in_the_order_of_the_log() -> None:
    cluster = GroupCluster()
    cluster.hold_appends = True
    cluster.commit(5)
    cluster.commit(9)
    cluster.held.reverse()
    cluster.release_appends()
    assert cluster.committed() == 9


def test_metadata_text_that_is_too_long_is_refused_alone() -> None:
    cluster = GroupCluster(GroupConfig(offset_metadata_max_bytes=3))
    (results,) = cluster.commit(5)
    assert code(results[TopicPartition("t", 0)]) == "OFFSET_METADATA_TOO_LARGE"


# Failover


def test_committed_offsets_and_members_survive_a_failover() -> None:
    cluster = GroupCluster()
    leader, other = cluster.stable(2)
    cluster.commit(5, leader)
    cluster.fail_over()
    assert cluster.committed() == 5
    assert cluster.state() == "STABLE"
    assert cluster.heartbeat(leader) is None
    assert cluster.sync(other)[0].assignment == b"a1"
    assert [one[0].keys() for one in [cluster.commit(6, other)]] == [{TopicPartition("t", 0)}]
    assert cluster.committed() == 6


def test_members_that_died_with_the_coordinator_are_removed_after_their_session() -> None:
    cluster = GroupCluster()
    cluster.stable(2)
    cluster.fail_over()
    cluster.time.run_for(200_000)
    assert cluster.state() == "EMPTY"


@pytest.mark.parametrize("step", ["joining", "joined", "syncing", "writing", "stable"])
def test_member_completes_its_join_after_a_failover_at_any_step(step: str) -> None:
    """The member acts as a client: it joins again after every error, with its member id while it has one."""
    cluster = GroupCluster()
    answers = cluster.join()
    joined = answers[0]
    if step == "joining":
        cluster.sync(joined, {joined.member_id: b"a"})
        answers = cluster.join()
    elif step == "syncing":
        other = cluster.join()
        cluster.join(joined.member_id)
        answers = cluster.sync(other[0])
    elif step == "writing":
        cluster.hold_appends = True
        answers = cluster.sync(joined, {joined.member_id: b"a"})
        assert answers == []
    elif step == "stable":
        cluster.sync(joined, {joined.member_id: b"a"})
    cluster.fail_over()
    if step in ("joining", "syncing", "writing"):
        assert code(answers[0]) == "NOT_COORDINATOR"
    cluster.hold_appends = False
    if step == "stable":
        assert cluster.heartbeat(joined) is None
        return
    if step == "writing":
        # The assignments were in the log of the elected broker: they remain valid.
        assert cluster.state() == "STABLE"
        assert cluster.sync(joined)[0].assignment == b"a"
        return
    rejoined = cluster.join()
    cluster.time.run_until(lambda: bool(rejoined), 200_000)
    assert cluster.sync(rejoined[0], {rejoined[0].member_id: b"b"})[0].assignment == b"b"


def test_requests_during_a_load_are_refused_as_retriable() -> None:
    cluster = GroupCluster()
    (only,) = cluster.stable(1)
    cluster.fail_over(run=False)
    with pytest.raises(PacelineError) as caught:
        cluster.committed()
    assert caught.value.code.name == "COORDINATOR_LOAD_IN_PROGRESS"
    assert caught.value.retriable
    assert code(cluster.join(only.member_id)[0]) == "COORDINATOR_LOAD_IN_PROGRESS"
    assert cluster.heartbeat(only) is None
    cluster.run()
    assert cluster.heartbeat(only) is None


def test_load_ends_only_when_every_record_read_is_committed() -> None:
    cluster = GroupCluster()
    cluster.commit(5)
    cluster.log.high_watermark = 0
    deposed_watermark = cluster.log.high_watermark
    cluster.fail_over(run=False)
    cluster.log.high_watermark = deposed_watermark
    cluster.time.run_for(500)
    with pytest.raises(PacelineError):
        cluster.committed()
    cluster.log.high_watermark = cluster.log.end
    cluster.time.run_for(100)
    assert cluster.committed() == 5


def test_deposed_coordinator_refuses_every_request() -> None:
    cluster = GroupCluster()
    (only,) = cluster.stable(1)
    deposed = cluster.coordinator
    cluster.fail_over()
    cluster.coordinator = deposed
    assert code(cluster.heartbeat(only)) == "NOT_COORDINATOR"
    assert code(cluster.commit(5, only)[0]) == "NOT_COORDINATOR"
    assert code(cluster.join()[0]) == "NOT_COORDINATOR"


def test_next_leader_epoch_of_the_same_broker_keeps_the_members() -> None:
    cluster = GroupCluster()
    (only,) = cluster.stable(1)
    cluster.log.leader_epoch += 1
    cluster.coordinator.become_leader(0, cluster.log.leader_epoch)
    assert cluster.heartbeat(only) is None


def test_skipped_leader_epoch_of_the_same_broker_loads_again() -> None:
    cluster = GroupCluster()
    (only,) = cluster.stable(1)
    cluster.log.leader_epoch += 2
    cluster.coordinator.become_leader(0, cluster.log.leader_epoch)
    with pytest.raises(PacelineError):
        cluster.committed()
    cluster.run()
    assert cluster.heartbeat(only) is None


# Deletion and expiry


def test_deleted_group_stays_deleted_after_a_failover() -> None:
    cluster = GroupCluster()
    (only,) = cluster.stable(1)
    cluster.commit(5, only)
    errors: list[PacelineError | None] = []
    cluster.coordinator.delete(GROUP, errors.append)
    assert code(errors.pop()) == "NON_EMPTY_GROUP"
    cluster.leave(only.member_id)
    cluster.coordinator.delete(GROUP, errors.append)
    assert errors == [None]
    cluster.fail_over()
    assert cluster.state() == "DEAD"
    assert cluster.committed() is None
    cluster.coordinator.delete(GROUP, errors.append)
    assert code(errors.pop()) == "GROUP_ID_NOT_FOUND"


def test_deletion_that_could_not_be_written_keeps_the_group() -> None:
    cluster = GroupCluster()
    cluster.commit(5)
    cluster.append_error = NotEnoughReplicasError("no")
    errors: list[PacelineError | None] = []
    cluster.coordinator.delete(GROUP, errors.append)
    assert code(errors[0]) == "COORDINATOR_NOT_AVAILABLE"
    assert cluster.committed() == 5


def test_a_deletion_whose_tombstones_may_be_in_the_log_is_not_undone() -> None:
    """A restored group would serve offsets that the next coordinator does not have."""
    cluster = GroupCluster()
    cluster.commit(5)
    cluster.hold_appends = True
    errors: list[PacelineError | None] = []
    cluster.coordinator.delete(GROUP, errors.append)
    ((on_done, _),) = cluster.held
    on_done(RequestTimedOutError("not replicated yet"))
    assert code(errors[0]) == "COORDINATOR_NOT_AVAILABLE"
    assert cluster.committed() is None
    cluster.held.clear()
    cluster.hold_appends = False
    cluster.commit(6, partition=1)
    cluster.fail_over()
    assert (cluster.committed(), cluster.committed(partition=1)) == (None, 6)


def test_a_commit_that_is_being_written_does_not_survive_a_deletion() -> None:
    cluster = GroupCluster()
    cluster.commit(4, partition=1)
    cluster.hold_appends = True
    cluster.commit(5)
    errors: list[PacelineError | None] = []
    cluster.coordinator.delete(GROUP, errors.append)
    cluster.release_appends()
    assert errors == [None]
    cluster.fail_over()
    assert (cluster.committed(), cluster.committed(partition=1)) == (None, None)


def test_a_group_with_more_offsets_than_fit_into_a_batch_is_deleted() -> None:
    cluster = GroupCluster()
    for partition in range(1_000):
        cluster.commit(5, partition=partition, topic="t" * 200)
    before = len(cluster.log.batches)
    errors: list[PacelineError | None] = []
    cluster.coordinator.delete(GROUP, errors.append)
    assert errors == [None]
    assert max(len(batch) for _, batch in cluster.log.batches[before:]) < 64 * 1024
    cluster.fail_over()
    assert cluster.state() == "DEAD"


def test_a_deletion_that_is_written_in_part_is_not_undone() -> None:
    cluster = GroupCluster()
    for partition in range(150):
        cluster.commit(5, partition=partition)
    cluster.hold_appends = True
    errors: list[PacelineError | None] = []
    cluster.coordinator.delete(GROUP, errors.append)
    (_, replicated), (on_done, _) = cluster.held
    replicated()
    assert errors == []
    on_done(NotEnoughReplicasError("no"))
    assert code(errors[0]) == "COORDINATOR_NOT_AVAILABLE"
    assert cluster.committed() is None


def test_offsets_of_an_empty_group_expire_after_their_retention() -> None:
    cluster = GroupCluster(EXPIRING)
    (only,) = cluster.stable(1)
    cluster.commit(5, only)
    cluster.leave(only.member_id)
    cluster.time.run_for(RETENTION_MS - CHECK_MS)
    assert cluster.committed() == 5
    cluster.time.run_for(3 * CHECK_MS)
    assert cluster.state() == "DEAD"
    cluster.fail_over()
    assert cluster.committed() is None


def test_offsets_of_subscribed_topics_do_not_expire_while_there_are_members() -> None:
    cluster = GroupCluster(EXPIRING)
    (only,) = cluster.stable(1)
    cluster.commit(5, only)
    cluster.commit(6, only, topic="left")
    for _ in range(3 * RETENTION_MS // 5_000):
        cluster.time.run_for(5_000)
        assert cluster.heartbeat(only) is None
    assert cluster.committed() == 5
    assert cluster.committed(topic="left") is None


def test_offsets_of_a_deleted_topic_are_deleted() -> None:
    cluster = GroupCluster()
    cluster.commit(5)
    cluster.commit(6, topic="kept")
    cluster.coordinator.partitions_deleted([TopicPartition("t", 0)])
    assert (cluster.committed(), cluster.committed(topic="kept")) == (None, 6)
    cluster.fail_over()
    assert (cluster.committed(), cluster.committed(topic="kept")) == (None, 6)


def test_offsets_are_returned_until_their_deletion_is_committed() -> None:
    cluster = GroupCluster()
    cluster.commit(5)
    cluster.hold_appends = True
    cluster.coordinator.partitions_deleted([TopicPartition("t", 0)])
    assert cluster.committed() == 5
    cluster.fail_over(lose_uncommitted=True)
    assert cluster.committed() == 5
    cluster.coordinator.partitions_deleted([TopicPartition("t", 0)])
    cluster.release_appends()
    assert cluster.committed() is None


def test_a_commit_after_the_deletion_of_an_offset_is_kept() -> None:
    cluster = GroupCluster()
    cluster.commit(5)
    cluster.hold_appends = True
    cluster.coordinator.partitions_deleted([TopicPartition("t", 0)])
    cluster.commit(6)
    cluster.release_appends()
    assert cluster.committed() == 6
    cluster.fail_over()
    assert cluster.committed() == 6


def test_first_request_creates_the_offsets_topic() -> None:
    cluster = GroupCluster()
    cluster.topic_exists = False
    with pytest.raises(CoordinatorNotAvailableError):
        cluster.coordinator.find_coordinator(GROUP)
    assert cluster.creations == 1


def test_members_of_a_group_whose_disk_is_short_keep_their_partitions_and_commit_later() -> None:
    cluster = GroupCluster()
    first, second = cluster.stable(2)
    cluster.commit(5, first)
    cluster.room_error = LogDirFullError("no room")
    for _ in range(10):
        cluster.time.run_for(SESSION_MS / 2)
        for member in (first, second):
            (refused,) = cluster.commit(9, member)
            assert code(refused) == "LOG_DIR_FULL" and refused.retriable
    assert cluster.state() == "STABLE" and cluster.committed() == 5
    # A rebalance is possible, too: the assignments are small and use the reserve of the disk.
    cluster.leave(second.member_id)
    again = cluster.join(first.member_id)[0]
    assert cluster.sync(again, {again.member_id: b"all"})[0].assignment == b"all"
    cluster.room_error = None
    assert cluster.commit(9, again) == [{TopicPartition("t", 0): None}]
    assert cluster.committed() == 9
