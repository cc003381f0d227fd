"""Moves of replicas between log directories: segments that take no more appends are copied in the background."""

from collections.abc import Callable

import pytest

from paceline.log import future_logs, segment_copy
from paceline.log.files import join
from paceline.log.log_config import LogConfig
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.log.segment_names import CLEANED_SUFFIX
from tests.support.broker_cluster import TP, BrokerCluster, BrokerUnderTest
from tests.unit.broker.fetcher.test_alter_log_dirs import (
    ONE,
    SMALL,
    TWO,
    cluster_of,
    fill,
    folders,
    is_killed,
    move,
    run_until_moved,
)

pytestmark = pytest.mark.origin("S2-4")
SEGMENTS = LogConfig(file_delete_delay_ms=1_000, segment_bytes=400, index_interval_bytes=100)


def begun(count: int = 40, **config: object) -> tuple[BrokerCluster, list[bytes]]:
    """A leader with several segments, whose replica moves; each piece of background work waits for the test."""
    cluster = cluster_of(1, log_config=SEGMENTS, **config)
    values = fill(cluster, count)
    assert cluster[1].log().segment_count > 5
    cluster[1].directory_work.is_held = True
    move(cluster)
    cluster.time.run_until(lambda: bool(cluster[1].directory_work.jobs), 1_000)
    return cluster, values


def step(broker: BrokerUnderTest) -> None:
    """Let the background copy the next slice, and the broker take note of it."""
    broker.cluster.time.run_until(lambda: bool(broker.directory_work.jobs), 1_000)
    broker.directory_work.run_next()
    broker.cluster.time.run_for(2)


def let_go(cluster: BrokerCluster) -> None:
    cluster[1].directory_work.is_held = False
    while cluster[1].directory_work.jobs:
        cluster[1].directory_work.run_next()
    run_until_moved(cluster)


def files_of(broker: BrokerUnderTest, folder: str) -> dict[str, bytes]:
    return {
        name.removeprefix(folder + "/"): bytes(content)
        for name, content in broker.files.contents.items()
        if name.startswith(folder + "/") and name[len(folder) + 1 :][:20].isdigit()
    }


def test_closed_segments_are_copied_as_they_are_while_producers_append() -> None:
    cluster, values = begun()
    broker = cluster[1]
    before = files_of(broker, "/one/orders-0")
    closed = [segment.base_offset for segment in broker.log().segments[:-1]]
    copies = 0
    while broker.directory_work.jobs:
        values += fill(cluster, 1, len(values))
        step(broker)
        copies += 1
    assert copies >= len(closed)
    let_go(cluster)
    assert broker.values() == values and broker.log().high_watermark == len(values)
    after = files_of(broker, "/two/orders-0")
    whole = {name: content for name, content in before.items() if int(name[:20]) in closed}
    assert len(whole) >= 4 * len(closed) - 1 and whole.items() <= after.items(), "with indexes and snapshots"
    cluster.time.run_for(2_000)
    assert folders(broker) == ["/two/orders-0"]
    restarted = cluster.restart(1)
    assert restarted.values() == values


def test_a_process_killed_at_any_step_of_a_move_of_segments_leaves_one_whole_copy() -> None:
    killed = 0
    while True:
        cluster = cluster_of(1, log_config=SEGMENTS, **SMALL)
        values = fill(cluster, 20)
        cluster.time.run_for(6_000)
        if not is_killed(cluster, killed):
            break
        killed += 1
        assert cluster[1].values() == values, killed
        cluster.decide(1, killed, (1,), (1,))
        if cluster[1].log().future is None and cluster[1].log().directory.path == ONE:
            assert move(cluster) is None
        run_until_moved(cluster)
        cluster.time.run_for(2_000)
        assert folders(cluster[1]) == ["/two/orders-0"] and cluster[1].values() == values, killed
        assert not any(CLEANED_SUFFIX in name for name in cluster[1].files.contents), killed
    assert killed > 60


def truncate_the_source(cluster: BrokerCluster) -> None:
    """Truncate within the segment that is being copied, and fill it with other records up to the same size."""
    log = cluster[1].log()
    source = log.segments[2]
    size, end = source.size, log.segments[3].base_offset
    log.truncate_to(end - 2)
    for value in (b"#1", b"#2", b"#3"):
        log.append_as_leader(encode_batch([NewRecord(1_000, None, value)]), 0, 1_000)
    assert log.segments[2] is source and source.size == size and log.segment_count == 4


def delete_the_source(cluster: BrokerCluster) -> None:
    log = cluster[1].log()
    log.increment_log_start_offset(log.segments[3].base_offset)
    log.remove_files(log.remove_segments_below_start())


def delete_within_the_source(cluster: BrokerCluster) -> None:
    log = cluster[1].log()
    log.increment_log_start_offset(log.segments[2].base_offset + 2)
    log.remove_files(log.remove_segments_below_start())


def start_again(cluster: BrokerCluster) -> None:
    log = cluster[1].log()
    log.truncate_fully_and_start_at(7)


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("change", [truncate_the_source, delete_the_source, delete_within_the_source, start_again])
def test_a_change_of_the_segment_that_is_copied_makes_the_copy_void(
    change: Callable[[BrokerCluster], None], is_read: bool
) -> None:
    cluster, _values = begun()
    broker = cluster[1]
    step(broker)
    step(broker)
    future = broker.log().future
    assert future is not None and future.log_end_offset == broker.log().segments[2].base_offset
    if is_read:  # the background has copied the segment, and the broker has not taken note of it
        broker.directory_work.run_next()
        change(cluster)
        cluster.time.run_for(2)
    else:
        change(cluster)
    values = broker.values()
    let_go(cluster)
    log = broker.log()
    assert broker.values() == values and log.future is None and log.directory.path == TWO
    assert log.log_start_offset == {start_again: 7}.get(change, log.log_start_offset)
    assert not any(CLEANED_SUFFIX in name for name in broker.files.contents)
    cluster.time.run_for(10_000)
    assert cluster.restart(1).values() == values


def test_a_damaged_segment_is_not_copied() -> None:
    cluster, _values = begun()
    log = cluster[1].log()
    cluster[1].files.contents[log.segments[1].log_path][-1] ^= 1
    cluster[1].directory_work.is_held = False
    while cluster[1].directory_work.jobs:
        cluster[1].directory_work.run_next()
    cluster.time.run_for(5_000)
    assert log.future is not None and log.future.log_end_offset == log.segments[1].base_offset
    assert TP in cluster[1].node.replica_manager.storage.damaged_logs.damaged
    assert not any(CLEANED_SUFFIX in name for name in cluster[1].files.contents)


def test_a_damaged_index_is_built_again_in_the_copy() -> None:
    cluster, values = begun()
    segment = cluster[1].log().segments[0]
    sound = bytes(cluster[1].files.contents[segment.offset_index.path])
    assert sound
    cluster[1].files.contents[segment.offset_index.path][-1] ^= 1
    let_go(cluster)
    assert bytes(cluster[1].files.contents[join("/two/orders-0", segment.offset_index.path[-26:])]) == sound
    assert cluster[1].values() == values


def test_a_copy_waits_until_its_target_has_room_for_the_whole_segment() -> None:
    cluster = cluster_of(1, log_config=SEGMENTS)
    values = fill(cluster, 40)
    broker = cluster[1]
    segment = broker.log().segments[0]
    broker.directory_work.is_held = True
    broker.files.limit_bytes = broker.files.used_bytes + segment.size + 1_000
    broker.logs.measure_space(cluster.time.now_ms())
    space = broker.logs.spaces[TWO]
    space._min_free_bytes = 500 + broker.files.NAME_BYTES
    broker.files.other_bytes = 600
    broker.logs.measure_space(cluster.time.now_ms())
    move(cluster)
    cluster.time.run_for(3_000)
    assert not broker.directory_work.jobs, "a copy that ends half-way would begin again and again"
    broker.files.limit_bytes = None
    let_go(cluster)
    assert broker.values() == values


def test_a_large_active_segment_is_rolled_and_copied_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(1)
    values = fill(cluster, 20)
    monkeypatch.setattr(future_logs, "_ROLL_BYTES", 1_000)
    move(cluster)
    run_until_moved(cluster)
    assert cluster[1].values() == values and [one.base_offset for one in cluster[1].log().segments] == [0, 20]


def test_producers_are_known_after_a_move_and_a_truncation() -> None:
    cluster = cluster_of(1, log_config=SEGMENTS)
    log = cluster[1].log()
    for sequence in range(40):
        sent = encode_batch([NewRecord(1_000, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=sequence)
        log.append_as_leader(sent, 0, 1_000)
    move(cluster)
    run_until_moved(cluster)
    moved = cluster[1].log()
    moved.truncate_to(30)
    entry = moved.producers.get(7)
    assert entry is not None and entry.last_sequence == 29
    cluster.time.run_for(10_000)
    entry = cluster.restart(1).log().producers.get(7)
    assert entry is not None and entry.last_sequence == 29 and len(entry.batches) == 5


def test_a_replica_that_is_deleted_during_a_copy_leaves_nothing() -> None:
    cluster, _values = begun()
    cluster.stop_replica(1, -2, True)
    cluster[1].directory_work.run_next()
    cluster.time.run_for(2_000)
    assert folders(cluster[1]) == [] and not any(CLEANED_SUFFIX in name for name in cluster[1].files.contents)


def test_a_copy_that_was_given_up_does_not_spoil_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The move was paused and continued; the thread of the first copy still runs, or was in an append."""
    monkeypatch.setattr(segment_copy, "_READ_BYTES", 100)
    cluster, values = begun(replica_fetch_max_bytes=2)
    broker = cluster[1]
    stale_work, _ = broker.directory_work.jobs.pop(0)
    cluster.stop_replica(1, 1, False)
    cluster.decide(1, 2, (1,), (1,))
    step(broker)
    stale_work()
    (path,) = (name for name in broker.files.contents if name.endswith(".log" + CLEANED_SUFFIX))
    size, late = broker.log().segments[0].size, [b"appended late"]
    assert 0 < broker.files.size(path) < size

    def append_late(operation: str, name: str) -> bool:
        if (operation, name, len(broker.files.contents[path])) == ("sync", path, size) and late:
            broker.files.contents[path].extend(late.pop())
        return False

    broker.files.fails = append_late
    step(broker)
    while late:
        step(broker)
    broker.files.fails = lambda _operation, _name: False
    let_go(cluster)
    assert broker.values() == values and broker.log().directory.path == TWO


def test_a_directory_that_fails_during_a_copy_ends_the_move() -> None:
    cluster, values = begun()
    broker = cluster[1]
    broker.files.fails = lambda operation, path: path.startswith(TWO) and operation == "append"
    step(broker)
    broker.files.fails = lambda _operation, _path: False
    cluster.time.run_for(1_000)
    assert broker.logs.live_log_dirs == [ONE] and broker.log().future is None and broker.values() == values
