"""Moves of replicas between log directories (KIP-113), on brokers with two or three directories."""

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.log import log_manager
from paceline.log.log_config import LogConfig
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.errors import KafkaStorageError, LogDirFullError, PacelineError, ReplicaNotAvailableError
from paceline.model.identifiers import TopicPartition
from paceline.model.log_dirs import ReplicaLogDir, ReplicaOnDisk
from tests.support.batches import decode_records
from tests.support.broker_cluster import TP, BrokerCluster, BrokerUnderTest, batch

pytestmark = pytest.mark.origin("S2-4")
ONE, TWO, THREE = "/one", "/two", "/three"
LOG_CONFIG = LogConfig(file_delete_delay_ms=1_000)
SMALL = {"replica_fetch_max_bytes": 200}
"""Small slices, so that a test can act while a log is half copied."""


def cluster_of(
    *broker_ids: int,
    dirs: tuple[str, ...] = (ONE, TWO),
    log_config: LogConfig = LOG_CONFIG,
    **config: object,
) -> BrokerCluster:
    """Brokers with a replica each, in the first directory; the first broker leads."""
    cluster = BrokerCluster((), log_config, **config)
    for broker_id in broker_ids:
        cluster.boot(broker_id, dirs=dirs)
    cluster.time.run_until(lambda: all(cluster[one].node.ready for one in broker_ids), 10_000)
    cluster.update_metadata()
    cluster.decide(broker_ids[0], 0, broker_ids, broker_ids, is_new=True)
    return cluster


def fill(cluster: BrokerCluster, count: int = 20, begin: int = 0) -> list[bytes]:
    values = [b"%d" % index for index in range(begin, begin + count)]
    leader = next(one for one in cluster.brokers.values() if one.up and is_leader(one))
    for value in values:
        answer = leader.produce(value)
        cluster.time.run_until(lambda answer=answer: bool(answer), 5_000)  # type: ignore[misc]
        assert answer[0].failure is None
    return values


def is_leader(broker: BrokerUnderTest) -> bool:
    partition = broker.node.replica_manager.hosted.online.get(TP)
    return partition is not None and partition.is_leader


def move(cluster: BrokerCluster, path: str = TWO, broker_id: int = 1) -> PacelineError | None:
    (error,) = cluster[broker_id].node.alter_replica_log_dirs([ReplicaLogDir(TP, path)])
    return error


def replicas(broker: BrokerUnderTest) -> dict[str, list[ReplicaOnDisk]]:
    return {view.path: list(view.replicas) for view in broker.node.describe_log_dirs([TP]) if view.replicas}


def folders(broker: BrokerUnderTest) -> list[str]:
    """Directories of logs, the hexadecimal digits of a name as ``*``."""
    found = (path for path in broker.files.directories if path.count("/") == 2)
    return sorted(path.split(".")[0] + (".*" + path[-7:] if "." in path else "") for path in found)


def half_copied(broker: BrokerUnderTest) -> Callable[[], bool]:
    def found() -> bool:
        future = broker.log().future
        return future is not None and 0 < future.log_end_offset < broker.log().log_end_offset

    return found


def run_until_moved(cluster: BrokerCluster, path: str = TWO, broker_id: int = 1) -> None:
    cluster.time.run_until(lambda: cluster[broker_id].log().directory.path == path, 30_000)


def test_a_move_copies_the_log_and_leaves_one_copy() -> None:
    cluster = cluster_of(1)
    values = fill(cluster)
    before = cluster[1].epochs()
    assert move(cluster) is None
    assert folders(cluster[1]) == ["/one/orders-0", "/two/orders-0.*-future"]
    run_until_moved(cluster)
    assert cluster[1].values() == values
    assert cluster[1].log().high_watermark == len(values)
    assert cluster[1].epochs() == before
    assert list(replicas(cluster[1])) == [TWO]
    cluster.time.run_for(2_000)
    assert folders(cluster[1]) == ["/two/orders-0"]
    assert fill(cluster, 5, 20) == cluster[1].values()[20:]
    restarted = cluster.restart(1)
    assert restarted.values() == [*values, b"20", b"21", b"22", b"23", b"24"]


class Killed(BaseException):
    """The process died during a file operation."""


def kill_at(broker: BrokerUnderTest, step: int) -> None:
    """Let the process die before a file operation that changes the disk."""
    left = step

    def fails(operation: str, _path: str) -> bool:
        nonlocal left
        if operation in ("create", "append", "truncate", "rename", "remove", "remove_tree", "make_directory"):
            left -= 1
            if left < 0:
                raise Killed
        return False

    broker.files.fails = fails


def is_killed(cluster: BrokerCluster, step: int) -> bool:
    """Move the replica; return whether the process died at this step, and was started again."""
    kill_at(cluster[1], step)
    try:
        move(cluster)
        run_until_moved(cluster)
        cluster.time.run_for(2_000)
    except Killed:
        cluster[1].files.fails = lambda _operation, _path: False
        cluster.restart(1)
        return True
    cluster[1].files.fails = lambda _operation, _path: False
    return False


def test_a_process_killed_at_any_step_of_a_move_leaves_one_whole_copy() -> None:
    killed = 0
    while True:
        cluster = cluster_of(1, **SMALL)
        values = fill(cluster, 4)
        cluster.time.run_for(6_000)
        if not is_killed(cluster, killed):
            break
        killed += 1
        assert cluster[1].values() == values, killed
        assert cluster[1].log().high_watermark == len(values), killed
        cluster.decide(1, killed, (1,), (1,))
        if cluster[1].log().future is None and cluster[1].log().directory.path == ONE:
            assert move(cluster) is None
        run_until_moved(cluster)
        cluster.time.run_for(3_000)
        assert folders(cluster[1]) == ["/two/orders-0"], killed
        assert cluster[1].values() == values, killed
        assert cluster[1].log().high_watermark == len(values), killed
        assert not any("moved-from" in path for path in cluster[1].files.contents), killed
    assert killed > 20


def test_a_restart_continues_with_the_half_copied_log() -> None:
    cluster = cluster_of(1, **SMALL)
    values = fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    copied = cluster[1].log().future.log_end_offset  # type: ignore[union-attr]
    broker = cluster.restart(1)
    future = broker.log().future
    assert future is not None and future.log_end_offset == copied
    cluster.time.run_for(1_000)
    assert broker.log().directory.path == ONE, "without a role nothing moves"
    cluster.decide(1, 1, (1,), (1,))
    run_until_moved(cluster)
    assert broker.values() == values


def test_a_leader_moves_its_replica_while_producers_append() -> None:
    cluster = cluster_of(1, 2, **SMALL)
    values = fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    values += fill(cluster, 10, 20)
    run_until_moved(cluster)
    values += fill(cluster, 10, 30)
    cluster.until_in_sync(1, 2)
    assert cluster[2].values() == values


def test_a_follower_moves_its_replica_while_it_fetches() -> None:
    cluster = cluster_of(1, 2, **SMALL)
    fill(cluster)
    cluster.until_in_sync(1, 2)
    move(cluster, TWO, 2)
    cluster.time.run_until(half_copied(cluster[2]), 5_000)
    fill(cluster, 10, 20)
    run_until_moved(cluster, TWO, 2)
    fill(cluster, 10, 30)
    cluster.until_in_sync(1, 2)
    assert cluster.state().isr == (1, 2)


def test_the_high_watermark_is_kept_at_the_swap() -> None:
    cluster = cluster_of(1, 2)
    fill(cluster, 5)
    cluster.until_in_sync(1, 2)
    cluster.cuts = {(2, 1), (1, 2)}
    cluster[1].produce(b"not replicated")
    move(cluster)
    run_until_moved(cluster)
    assert (cluster[1].log().high_watermark, cluster[1].log().log_end_offset) == (5, 6)
    cluster.restart(1)
    assert cluster[1].log().high_watermark == 5


def test_an_epoch_without_records_is_kept_at_the_swap() -> None:
    cluster = cluster_of(1)
    fill(cluster, 3)
    cluster.decide(1, 4, (1,), (1,))
    assert cluster[1].epochs() == [(0, 0), (4, 3)]
    move(cluster)
    run_until_moved(cluster)
    assert cluster[1].epochs() == [(0, 0), (4, 3)]


def test_a_truncation_is_repeated_on_the_future_log() -> None:
    cluster = cluster_of(1, **SMALL)
    fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    log, future = cluster[1].log(), cluster[1].log().future
    assert future is not None
    log.truncate_to(1)
    assert future.log_end_offset == 1
    log.append_as_leader(batch(b"other"), 1, 1_000)
    run_until_moved(cluster)
    assert cluster[1].values() == [b"0", b"other"]


def test_a_restarted_log_restarts_the_future_log() -> None:
    cluster = cluster_of(1, **SMALL)
    fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    cluster[1].log().truncate_fully_and_start_at(100)
    future = cluster[1].log().future
    assert future is not None and (future.log_start_offset, future.log_end_offset) == (100, 100)


def test_deleted_records_are_deleted_from_the_future_log_too() -> None:
    cluster = cluster_of(1, **SMALL)
    fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    future = cluster[1].log().future
    assert future is not None
    partition = cluster[1].node.replica_manager.hosted.online[TP]
    partition.delete_records(1)
    assert future.log_start_offset == 1 == partition.low_watermark()
    partition.delete_records(15)
    assert (future.log_start_offset, future.log_end_offset) == (15, 15)
    run_until_moved(cluster)
    assert cluster[1].values() == [b"15", b"16", b"17", b"18", b"19"]
    assert cluster.restart(1).log().log_start_offset == 15


def test_a_copy_begins_at_the_log_start_offset() -> None:
    cluster = cluster_of(1)
    fill(cluster)
    cluster[1].node.replica_manager.hosted.online[TP].delete_records(12)
    move(cluster)
    run_until_moved(cluster)
    assert cluster[1].log().log_start_offset == 12
    assert len(cluster[1].values()) == 8


def test_a_role_change_does_not_interrupt_a_move() -> None:
    cluster = cluster_of(1, 2, **SMALL)
    values = fill(cluster)
    cluster.until_in_sync(1, 2)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    cluster.decide(2, 1, (1, 2), (1, 2))
    values += fill(cluster, 5, 20)
    run_until_moved(cluster)
    cluster.until_in_sync(1, 2)
    assert cluster[1].values() == values


def test_a_stopped_replica_is_not_moved_until_its_next_role() -> None:
    cluster = cluster_of(1, 2, **SMALL)
    fill(cluster)
    cluster.until_in_sync(1, 2)
    move(cluster, TWO, 2)
    cluster.time.run_until(half_copied(cluster[2]), 5_000)
    cluster.stop_replica(2, 0, delete=False)
    cluster.time.run_for(5_000)
    assert cluster[2].log().directory.path == ONE
    cluster.decide(1, 1, (1, 2), (1, 2))
    run_until_moved(cluster, TWO, 2)


def test_a_deleted_replica_leaves_no_future_log() -> None:
    cluster = cluster_of(1, 2, **SMALL)
    fill(cluster)
    cluster.until_in_sync(1, 2)
    move(cluster, TWO, 2)
    cluster.time.run_until(half_copied(cluster[2]), 5_000)
    cluster.stop_replica(2, 0, delete=True)
    assert folders(cluster[2]) == ["/one/orders-0.*-delete", "/two/orders-0.*-delete"]
    cluster.time.run_for(2_000)
    assert folders(cluster[2]) == []


def test_a_future_log_of_a_deleted_topic_is_not_continued() -> None:
    cluster = cluster_of(1, **SMALL)
    fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    future = cluster[1].log().future
    assert future is not None
    cluster[1].files.contents[f"{future.path}/partition.metadata"] = bytearray(
        b"version: 0\ntopic_id: topic-id-of-orders-two"
    )
    broker = cluster.restart(1)
    assert broker.log().future is None
    cluster.time.run_for(2_000)
    assert folders(broker) == ["/one/orders-0"]


def test_a_second_target_replaces_the_first() -> None:
    cluster = cluster_of(1, dirs=(ONE, TWO, THREE), **SMALL)
    values = fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    assert move(cluster, THREE) is None
    run_until_moved(cluster, THREE)
    cluster.time.run_for(2_000)
    assert folders(cluster[1]) == ["/three/orders-0"]
    assert cluster[1].values() == values


def test_the_present_directory_as_target_cancels_a_move() -> None:
    cluster = cluster_of(1, **SMALL)
    fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    assert move(cluster, ONE) is None
    cluster.time.run_for(2_000)
    assert folders(cluster[1]) == ["/one/orders-0"]
    assert cluster[1].log().future is None


def test_the_same_target_again_changes_nothing() -> None:
    cluster = cluster_of(1, **SMALL)
    fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    future = cluster[1].log().future
    assert move(cluster) is None and cluster[1].log().future is future


def fail_directory(cluster: BrokerCluster, path: str) -> None:
    cluster[1].files.fails = lambda _operation, name: name.startswith(path)
    manager = cluster[1].node.replica_manager
    manager.logs.checkpoint_high_watermarks()
    manager.storage.take_failed_dirs_offline()


def test_a_failed_target_ends_the_move_and_the_replica_stays() -> None:
    cluster = cluster_of(1, **SMALL)
    values = fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    fail_directory(cluster, TWO)
    cluster.time.run_for(3_000)
    assert cluster[1].log().directory.path == ONE and cluster[1].log().future is None
    assert cluster[1].values() == values
    assert not cluster[1].fatal
    assert isinstance(move(cluster), KafkaStorageError)
    assert fill(cluster, 2, 20) == cluster[1].values()[20:]


def test_a_failed_source_takes_the_replica_offline_and_a_restart_continues() -> None:
    cluster = cluster_of(1, **SMALL)
    values = fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    fail_directory(cluster, ONE)
    cluster.time.run_for(3_000)
    assert TP in cluster[1].node.replica_manager.hosted.offline
    cluster[1].files.fails = lambda _operation, _name: False
    cluster.restart(1)
    cluster.decide(1, 1, (1,), (1,))
    run_until_moved(cluster)
    assert cluster[1].values() == values


def test_a_target_that_fails_in_the_swap_loses_against_the_old_log() -> None:
    """The renamed copy stays on the failed disk; the old log grows, and must win when the disk returns."""
    cluster = cluster_of(1)
    values = fill(cluster)

    def fails(operation: str, path: str) -> bool:
        return (
            operation == "sync_directory"
            and path == TWO
            and any(name == f"{TWO}/orders-0" for name in cluster[1].files.directories)
        )

    cluster[1].files.fails = fails
    move(cluster)
    cluster.time.run_for(2_000)
    assert folders(cluster[1]) == ["/one/orders-0", "/two/orders-0"]
    values += fill(cluster, 3, 20)
    cluster[1].files.fails = lambda _operation, _path: False
    broker = cluster.restart(1)
    assert broker.log().directory.path == ONE
    assert broker.values() == values
    cluster.time.run_for(2_000)
    assert folders(broker) == ["/one/orders-0"]


def test_an_old_directory_that_fails_in_the_swap_loses_against_the_new_log() -> None:
    cluster = cluster_of(1)
    values = fill(cluster)
    cluster[1].files.fails = lambda operation, path: operation == "rename" and path == f"{ONE}/orders-0"
    move(cluster)
    run_until_moved(cluster)
    values += fill(cluster, 3, 20)
    cluster[1].files.fails = lambda _operation, _path: False
    broker = cluster.restart(1)
    assert broker.log().directory.path == TWO
    assert broker.values() == values
    cluster.time.run_for(2_000)
    assert folders(broker) == ["/two/orders-0"]


def test_a_load_makes_the_name_of_a_moved_log_durable_before_it_deletes_the_old_log() -> None:
    cluster = cluster_of(1)
    fill(cluster)
    files = cluster[1].files

    def fails(operation: str, path: str) -> bool:
        if operation == "sync_directory" and path == TWO and f"{TWO}/orders-0" in files.directories:
            raise Killed
        return False

    files.fails = fails
    with pytest.raises(Killed):
        move(cluster)
        run_until_moved(cluster)
    files.fails = lambda _operation, _path: False
    files.operations.clear()
    cluster.restart(1)
    named = files.operations.index(("sync_directory", TWO))
    assert named < files.operations.index(("rename", f"{ONE}/orders-0"))


def test_two_logs_without_a_move_stop_the_start() -> None:
    cluster = cluster_of(1)
    fill(cluster)
    files = cluster[1].files
    files.make_directory("/two/orders-0")
    with pytest.raises(KafkaStorageError, match="is in /one and in /two"):
        cluster.restart(1)


def test_a_move_waits_for_its_throttle() -> None:
    cluster = cluster_of(1, **SMALL)
    fill(cluster, 40)
    size = cluster[1].log().size_bytes
    cluster[1].node.replica_manager.hosted.quotas.alter_log_dirs.limit = size // 20
    move(cluster)
    cluster.time.run_for(3_000)
    assert cluster[1].log().directory.path == ONE
    assert half_copied(cluster[1])()
    run_until_moved(cluster)


def test_directories_move_at_most_as_many_replicas_as_configured() -> None:
    cluster = cluster_of(1, dirs=(ONE, TWO, THREE), num_replica_alter_log_dirs_threads=1, **SMALL)
    other = TopicPartition("payments", 0)
    cluster.decide(1, 0, (1,), (1,), tp=other, is_new=True)
    fill(cluster)
    for _ in range(20):
        cluster[1].produce(b"x", tp=other)
    cluster.time.run_for(100)
    (first,) = cluster[1].node.alter_replica_log_dirs([ReplicaLogDir(other, THREE)])
    assert first is None and move(cluster) is None
    manager = cluster[1].node.replica_manager
    assert manager.moves.moves == (other, TP)
    both = []

    def moved() -> bool:
        both.append(
            [
                manager.logs.futures.get(tp) is not None and manager.logs.futures.get(tp).size_bytes > 0  # type: ignore[union-attr]
                for tp in (TP, other)
            ]
        )
        return not manager.logs.futures.all()

    cluster.time.run_until(moved, 20_000)
    assert [True, True] not in both


def test_a_copied_future_log_is_listed_with_its_lag() -> None:
    cluster = cluster_of(1, **SMALL)
    fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    (replica,) = replicas(cluster[1])[TWO]
    future = cluster[1].log().future
    assert future is not None
    assert replica == ReplicaOnDisk(TP, future.size_bytes, 20 - future.log_end_offset, is_future=True)


def test_readers_are_not_served_from_the_future_log() -> None:
    cluster = cluster_of(1, **SMALL)
    values = fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    (answer,) = cluster[1].consume(0)
    assert [record.value for record in decode_records(answer.results[0].batches)] == values


def test_the_log_is_not_compacted_while_it_moves() -> None:
    cluster = cluster_of(1, log_cleaner_backoff_ms=100, **SMALL)
    fill(cluster)
    log = cluster[1].log()
    log.config = replace(log.config, cleanup_policy=frozenset({"compact"}))
    cleaner = cluster[1].node._cleaner
    assert cleaner._may_clean(TP, log)
    cluster[1].node.replica_manager.hosted.quotas.alter_log_dirs.limit = 0
    move(cluster)
    assert not cleaner._may_clean(TP, log) and cleaner._is_void(log)


def test_a_preferred_directory_is_used_when_the_replica_is_created() -> None:
    cluster = cluster_of(1)
    other = TopicPartition("payments", 0)
    cluster.decide(1, 0, (1,), (1,), tp=TopicPartition("payments", 1), is_new=True)
    (error,) = cluster[1].node.alter_replica_log_dirs([ReplicaLogDir(other, TWO)])
    assert isinstance(error, ReplicaNotAvailableError)
    cluster.decide(1, 0, (1,), (1,), tp=other, is_new=True)
    assert cluster[1].log(other).directory.path == TWO


def test_a_preferred_directory_is_forgotten_with_its_topic_and_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_of(1)
    wishes = cluster[1].logs._preferred_dirs
    cluster.decide(2, 0, (2,), (2,), tp=TopicPartition("payments", 0), to=())
    for index in range(2):
        cluster[1].node.alter_replica_log_dirs([ReplicaLogDir(TopicPartition("payments", index), TWO)])
    cluster[1].node.partitions_deleted([TopicPartition("payments", 0)])
    assert list(wishes) == [TopicPartition("payments", 1)]
    monkeypatch.setattr(log_manager, "MAX_PREFERRED_DIRS", 2)
    for index in range(3):
        cluster[1].node.alter_replica_log_dirs([ReplicaLogDir(TopicPartition("rides", index), TWO)])
    assert list(wishes) == [TopicPartition("rides", 1), TopicPartition("rides", 2)], "the latest stay"


def test_a_repeated_batch_is_recognised_after_the_move() -> None:
    cluster = cluster_of(1)
    log = cluster[1].log()
    sent = encode_batch([NewRecord(1_000, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0)
    log.append_as_leader(sent, 0, 1_000)
    move(cluster)
    run_until_moved(cluster)
    assert cluster[1].log().append_as_leader(sent, 0, 1_000).duplicate


def test_a_damaged_log_is_not_moved() -> None:
    cluster = cluster_of(1, **SMALL)
    fill(cluster)
    path = f"{ONE}/orders-0/{0:020d}.log"
    cluster[1].files.contents[path][100] ^= 1
    move(cluster)
    cluster.time.run_for(5_000)
    assert cluster[1].log().directory.path == ONE


def test_fetchers_of_directories_end_with_their_moves() -> None:
    cluster = cluster_of(1, **SMALL)
    fill(cluster)
    move(cluster)
    manager = cluster[1].node.replica_manager.moves
    assert list(manager._fetchers) == [TWO]
    run_until_moved(cluster)
    assert not manager._fetchers and not manager.moves


def test_a_moved_log_is_flushed_before_the_swap() -> None:
    cluster = cluster_of(1)
    fill(cluster)
    files = cluster[1].files
    files.synced.clear()
    move(cluster)
    cluster.time.run_until(lambda: cluster[1].log().directory.path == TWO, 5_000)
    assert any(path.endswith(".log") and "-future/" in path for path in files.synced)
    assert cluster[1].log().recovery_point == 20


@pytest.mark.parametrize("compacted_to", [None, 5])
def test_a_copy_begins_again_when_the_log_was_compacted_while_its_directory_was_offline(
    compacted_to: int | None,
) -> None:
    cluster = cluster_of(1, **SMALL)
    values = fill(cluster)
    cluster[1].log().compaction.first_dirty_offset = 2
    cluster[1].logs.checkpoint_cleaner_offsets()
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    if compacted_to is not None:
        cluster[1].files.contents[f"{ONE}/cleaner-offset-checkpoint"] = bytearray(b"0\n1\norders 0 %d\n" % compacted_to)
    broker = cluster.restart(1)
    future = broker.log().future
    assert future is not None and (future.log_end_offset > 0) is (compacted_to is None)
    cluster.decide(1, 1, (1,), (1,))
    run_until_moved(cluster)
    assert broker.values() == values


# full disks


def test_a_move_waits_while_its_target_has_no_room() -> None:
    cluster = cluster_of(1, **SMALL)
    values = fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    cluster[1].logs.spaces[TWO].note_no_room()
    future = cluster[1].log().future
    assert future is not None
    end = future.log_end_offset
    cluster.time.run_for(5_000)
    assert future.log_end_offset == end and cluster[1].logs.live_log_dirs == [ONE, TWO]
    assert fill(cluster, 1, 20) == cluster[1].values()[20:], "the replica serves meanwhile"
    run_until_moved(cluster)
    assert cluster[1].values() == [*values, b"20"]


def test_a_move_continues_after_a_change_that_its_copy_had_no_room_to_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(1, **SMALL)
    values = fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    future = cluster[1].log().future

    def no_room(_log: PartitionLog, _offset: int) -> None:
        raise LogDirFullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "follow_start", no_room)
        cluster[1].log().increment_log_start_offset(1)
    assert future is not None and cluster[1].log().future is None
    run_until_moved(cluster)
    assert cluster[1].log().log_start_offset == 1 and cluster[1].values() == values[1:]


def test_a_swap_without_room_ends_the_move_and_leaves_the_log() -> None:
    cluster = cluster_of(1)
    values = fill(cluster)

    def fails(operation: str, path: str) -> bool:
        if operation == "append" and "moved-from" in path:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return False

    cluster[1].files.fails = fails
    move(cluster)
    cluster.time.run_until(lambda: cluster[1].logs.futures.get(TP) is None, 10_000)
    cluster[1].files.fails = lambda _operation, _path: False
    cluster.time.run_for(20_000)
    assert cluster[1].logs.live_log_dirs == [ONE, TWO] and folders(cluster[1]) == ["/one/orders-0"]
    assert fill(cluster, 1, 20) == cluster[1].values()[20:] and cluster[1].values()[:20] == values
    move(cluster)
    run_until_moved(cluster)
    assert cluster[1].values() == [*values, b"20"]


def test_a_failed_directory_with_an_unfinished_move_is_not_taken_back_without_a_restart() -> None:
    cluster = cluster_of(1, **SMALL)
    values = fill(cluster)
    move(cluster)
    cluster.time.run_until(half_copied(cluster[1]), 5_000)
    cluster[1].files.fails = lambda operation, path: path.startswith(TWO) and operation == "append"
    cluster.time.run_until(lambda: cluster[1].logs.live_log_dirs == [ONE], 5_000)
    cluster[1].files.fails = lambda _operation, _path: False
    before = dict(cluster[1].files.contents)
    assert "moves are not finished" in str(cluster[1].retry_log_dir(TWO)) and cluster[1].logs.live_log_dirs == [ONE]
    assert cluster[1].files.contents == before, "it is refused before the load, which may change files"
    cluster.restart(1)
    cluster.decide(1, 1, (1,), (1,))
    run_until_moved(cluster)
    assert cluster[1].values() == values
