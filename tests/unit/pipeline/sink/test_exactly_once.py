"""Exactly-once writes, without Spark: staging, publishing, drivers that die, commit and abort."""

import pickle
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from paceline.model.errors import CorruptMessageError, MessageTooLargeError
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.data_source import PacelineDataSource
from paceline.pipeline.errors import InvalidRowError, PublishFencedError, StagedDataLostError, UnsupportedOperationError
from paceline.pipeline.sink import writer as writer_module
from paceline.pipeline.sink.options import WriteOptions
from paceline.pipeline.sink.publisher import EPOCHS, Publisher, producer_of
from paceline.pipeline.sink.staging import Staged
from paceline_client import Producer, RecordFuture
from tests.support.slow import slow_but_every
from tests.unit.pipeline.batches import encode, simple_records
from tests.unit.pipeline.served_log import ServedCluster
from tests.unit.pipeline.sink.writes import (
    PARTITIONS,
    STAGING,
    fresh_channels,
    options,
    rows,
    served,
    struct,
    values,
    write,
)

__all__ = ["fresh_channels", "served"]


@pytest.fixture
def every_batch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the answer to each batch, so that a publish ends between two appends."""
    really = Producer.send_batch

    def send_and_wait(*given: Any) -> RecordFuture:
        future = really(*given)
        future.exception(30)
        return future

    monkeypatch.setattr(Producer, "send_batch", send_and_wait)


# --- exactly once


def exact(served: ServedCluster) -> WriteOptions:
    return options(served, deliveryGuarantee="exactly-once", paceline__batch__size="300")


def task_rows(first: int, count: int = 30) -> pa.RecordBatch:
    """Rows of 100 bytes with their number, spread over the partitions."""
    made = [b"%08d" % n + b"." * 92 for n in range(first, first + count)]
    return rows(made, partition=pa.array([n % PARTITIONS for n in range(first, first + count)], pa.int32()))


def numbers(served: ServedCluster) -> dict[int, list[int]]:
    return {number: [int((each or b"")[:8]) for each in part] for number, part in values(served).items()}


def of_partitions(count: int) -> dict[int, list[int]]:
    return {number: list(range(number, count, PARTITIONS)) for number in range(PARTITIONS)}


def stage(served: ServedCluster, batch_id: int) -> Staged:
    """Two tasks of a micro-batch of 60 rows."""
    staged: dict[Any, list[Any]] = {}
    for task in range(2):
        message = write(exact(served), task_rows(batch_id * 60 + task * 30))
        assert message.staged is not None
        for tp, places in message.staged.batches.items():
            staged.setdefault(tp, []).extend(places)
    return Staged(staged)


class DriverDiedError(Exception):
    """Ends a publish where a killed driver would end it."""


class DiesAt:
    """Ends the publish before its ``number``-th step."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.names: list[str] = []

    def __call__(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.number:
            raise DriverDiedError(name)


def publisher(served: ServedCluster, at_step: Any = lambda _: None) -> Publisher:
    return Publisher(exact(served).view(), exact(served), at_step)


def test_staged_rows_are_not_visible_before_the_commit(served: ServedCluster) -> None:
    staged = stage(served, 0)
    assert numbers(served) == {0: [], 1: [], 2: []}
    done = publisher(served).publish("q", 0, staged)
    assert (done.records, done.appended, done.repeated) == (60, 60, False)
    assert numbers(served) == of_partitions(60)


def test_a_repeated_commit_appends_nothing(served: ServedCluster) -> None:
    staged = stage(served, 0)
    publisher(served).publish("q", 0, staged)
    done = publisher(served).publish("q", 0, stage(served, 0))
    assert (done.records, done.appended, done.repeated) == (60, 0, True)
    assert numbers(served) == of_partitions(60)


STEPS = 35
"""Steps of one publish in these tests, `test_the_kill_matrix_covers_every_step` counts them."""


def test_the_kill_matrix_covers_every_step(served: ServedCluster) -> None:
    steps = DiesAt(0)
    publisher(served, steps).publish("q", 0, stage(served, 0))
    assert len(steps.names) == STEPS
    assert steps.names[:3] == ["list", "decide", "read decision"]
    assert sum(name.startswith("append ") for name in steps.names) > 10


@pytest.mark.usefixtures("every_batch_alone")
@pytest.mark.parametrize("forgets", [False, True], ids=["remembered", "forgotten"])
@pytest.mark.parametrize("number", slow_but_every(4, range(1, STEPS + 1)))
def test_a_driver_that_dies_before_any_step_loses_and_repeats_nothing(
    served: ServedCluster, number: int, forgets: bool
) -> None:
    """The next run stages other batches, as after a shuffle; the brokers may have forgotten the producer meanwhile."""
    publisher(served).publish("q", 0, stage(served, 0))
    try:
        publisher(served, DiesAt(number)).publish("q", 1, stage(served, 1))
    except DriverDiedError:
        pass
    if forgets:
        for (topic, _), partition in served.partitions.items():
            if topic == "t":
                partition.producers.clear()
    # Another number of rows per task: other batches, the same rows.
    again: dict[Any, list[Any]] = {}
    for first in range(60, 120, 20):
        message = write(exact(served), task_rows(first, 20))
        assert message.staged is not None
        for tp, places in message.staged.batches.items():
            again.setdefault(tp, []).extend(places)
    done = publisher(served).publish("q", 1, Staged(again))
    assert done.records == 60
    assert numbers(served) == of_partitions(120)
    publisher(served).publish("q", 2, stage(served, 2))
    assert numbers(served) == of_partitions(180)


@pytest.mark.usefixtures("every_batch_alone")
def test_drivers_that_die_one_after_another_lose_and_repeat_nothing(served: ServedCluster) -> None:
    for number in (9, 3, 5, 6, 7, 12, 1, 20, 6):
        with pytest.raises(DriverDiedError):
            publisher(served, DiesAt(number)).publish("q", 0, stage(served, 0))
    publisher(served).publish("q", 0, stage(served, 0))
    assert numbers(served) == of_partitions(60)


def test_lost_answers_of_every_append_repeat_nothing(served: ServedCluster) -> None:
    staged = stage(served, 0)
    for partition in served.partitions.values():
        partition.lost_answers = 2
    publisher(served).publish("q", 0, staged)
    assert numbers(served) == of_partitions(60)


def test_two_drivers_that_decide_publish_the_first_decision(served: ServedCluster) -> None:
    old, new = stage(served, 0), stage(served, 0)
    publisher(served).publish("q", 0, new)
    done = publisher(served).publish("q", 0, old)
    assert done.repeated
    assert numbers(served) == of_partitions(60)


@pytest.mark.usefixtures("every_batch_alone")
@pytest.mark.parametrize("count", [0, 5], ids=["no rows", "fewer rows"])
def test_a_repeat_with_other_rows_publishes_the_decided_rows(served: ServedCluster, count: int) -> None:
    """A query may compute fewer rows the second time: after data loss that it allows, or with a filter by the clock."""
    decided = write(exact(served), task_rows(0, 60))
    steps = DiesAt(10)
    with pytest.raises(DriverDiedError):
        writer_module.publish(exact(served), [decided, None], 0, steps)
    assert steps.names[-1].startswith("append ")
    assert 0 < sum(map(len, numbers(served).values())) < 60
    again = [task_rows(100, count)] if count else []
    writer_module.publish(exact(served), [write(exact(served), *again)], 0)
    assert numbers(served) == of_partitions(60)


def test_an_empty_micro_batch_is_decided_as_empty(served: ServedCluster) -> None:
    writer_module.publish(exact(served), [write(exact(served))], 0)
    writer_module.publish(exact(served), [write(exact(served), task_rows(0, 60))], 0)
    assert numbers(served) == {0: [], 1: [], 2: []}
    writer_module.publish(exact(served), [write(exact(served), task_rows(0, 60))], 1)
    assert numbers(served) == of_partitions(60)


def test_an_old_driver_is_fenced_by_a_later_batch(served: ServedCluster) -> None:
    late = stage(served, 0)
    publisher(served).publish("q", 0, stage(served, 0))
    publisher(served).publish("q", 1, stage(served, 1))
    with pytest.raises(PublishFencedError, match="a later batch of this query has been published"):
        publisher(served).publish("q", 0, late)
    assert numbers(served) == of_partitions(120)


def test_queries_do_not_disturb_each_other(served: ServedCluster) -> None:
    publisher(served).publish("q", 0, stage(served, 0))
    done = publisher(served).publish("other", 0, stage(served, 1))
    assert not done.repeated
    assert numbers(served) == of_partitions(120)


def test_leaders_that_move_during_the_publish_are_followed(served: ServedCluster) -> None:
    def move(name: str) -> None:
        if name in ("decide", "read decision", "append 2", "append 4"):
            for partition in served.partitions.values():
                partition.leader = 3 - (partition.leader or 1)

    publisher(served, move).publish("q", 0, stage(served, 0))
    assert numbers(served) == of_partitions(60)


def test_staged_data_deleted_after_the_decision_is_named(served: ServedCluster) -> None:
    with pytest.raises(DriverDiedError):
        publisher(served, DiesAt(5)).publish("q", 0, stage(served, 0))
    for number in range(2):
        partition = served.partitions[STAGING, number]
        if partition.batches:
            # The decision itself is the last batch of its partition.
            partition.log_start_offset = partition.batches[-1][0]
    with pytest.raises(StagedDataLostError, match="was deleted by retention"):
        publisher(served).publish("q", 0, stage(served, 0))


def test_a_batch_of_an_impossible_length_ends_the_scan(served: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = bytearray(encode(simple_records(1)))
    batch[8:12] = (-12).to_bytes(4, "big", signed=True)
    served.partitions["t", 0].high_watermark = 1
    made = publisher(served)
    made._cluster.describe_topics(["t"])
    monkeypatch.setattr(made, "_fetch", lambda *_, **__: bytes(batch))
    with pytest.raises(CorruptMessageError, match="length -12"):
        made._published_records(TopicPartition("t", 0), 0, 1, 0)


def test_batch_ids_beyond_an_epoch_get_another_producer_id() -> None:
    first, second = producer_of("q", EPOCHS - 1), producer_of("q", EPOCHS)
    assert first[0] != second[0]
    assert (first[1], second[1]) == (EPOCHS - 1, 0)
    assert producer_of("q", 0)[0] == first[0]
    assert 0 <= first[0] < 1 << 63


# --- the size limit of the staging topic


def test_a_value_that_the_target_takes_is_staged_in_a_topic_of_an_earlier_version(served: ServedCluster) -> None:
    served.partitions["u", 0].max_message_bytes = 3_000_000
    message = write(exact(served), rows([b"small", b"x" * 1_500_000, b"last"], topic="u"))
    writer_module.publish(exact(served), [message], 0)
    assert values(served, "u") == {0: [b"small", b"x" * 1_500_000, b"last"]}


def test_a_staging_limit_that_cannot_be_raised_names_the_target(served: ServedCluster) -> None:
    served.partitions["u", 0].max_message_bytes = 3_000_000
    served.refuses_changes = True
    with pytest.raises(MessageTooLargeError, match=r"^u/0: a batch of 1500074 bytes cannot be staged: .*planned"):
        write(exact(served), rows([b"x" * 1_500_000], topic="u"))


def test_a_row_that_its_topic_does_not_take_is_not_staged(served: ServedCluster) -> None:
    """It would be decided, and then no commit could publish it."""
    served.partitions[STAGING, 0].max_message_bytes = served.partitions[STAGING, 1].max_message_bytes = 4 << 20
    with pytest.raises(InvalidRowError, match=r"u/0: a row makes a batch of 1500074 bytes, .* takes 1048588"):
        write(exact(served), rows([b"x" * 1_500_000], topic="u"))


# --- commit and abort as Spark calls them


def test_abort_after_a_failed_commit_removes_nothing(served: ServedCluster) -> None:
    source = PacelineDataSource(
        {"paceline.bootstrap.servers": served.bootstrap, "topic": "t", "deliveryGuarantee": "exactly-once"}
    )
    made = source.streamWriter(struct("value binary, partition int"), overwrite=False)
    messages = [write(exact(served), task_rows(0, 60)), None]
    made.commit(messages, 0)
    made.abort(messages, 0)
    made.abort([None, None], 1)
    assert numbers(served) == of_partitions(60)
    made.commit(messages, 0)
    assert numbers(served) == of_partitions(60)


def test_a_batch_write_publishes_all_or_nothing(served: ServedCluster) -> None:
    source = PacelineDataSource(
        {"paceline.bootstrap.servers": served.bootstrap, "topic": "t", "deliveryGuarantee": "exactly-once"}
    )
    made = source.writer(struct("value binary, partition int"), overwrite=False)
    copy = pickle.loads(pickle.dumps(made))
    message = copy.write(iter([task_rows(0, 60)]))
    made.abort([message, None])
    assert numbers(served) == {0: [], 1: [], 2: []}
    made.commit([message])
    made.commit([message])
    assert numbers(served) == of_partitions(60)


def foreach_batch(
    served: ServedCluster, monkeypatch: pytest.MonkeyPatch, query: str, version: int, batch: pa.RecordBatch, app: str
) -> None:
    """Write a batch as a query does in ``foreachBatch``, with a task that knows the query."""
    context = SimpleNamespace(getLocalProperty=lambda _: query or None)
    monkeypatch.setattr(writer_module.TaskContext, "get", lambda: context)
    given = {"topic": "t", "deliveryGuarantee": "exactly-once", "txnAppId": app, "txnVersion": str(version)}
    source = PacelineDataSource({"paceline.bootstrap.servers": served.bootstrap} | given)
    made = source.writer(struct("value binary, partition int"), overwrite=False)
    made.commit([pickle.loads(pickle.dumps(made)).write(iter([batch]))])


def test_a_repeated_version_of_an_application_appends_nothing(
    served: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for query in ("", "first"):
        app = f"app of {query}"
        start = sum(map(len, numbers(served).values()))
        for version in (0, 0, 1, 1, 40_000, 40_000):
            rows_of_version = task_rows(start + 30 * [0, 1, 40_000].index(version))
            foreach_batch(served, monkeypatch, query, version, rows_of_version, app)
    assert numbers(served) == of_partitions(180)


def test_two_queries_with_one_id_are_refused(served: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    foreach_batch(served, monkeypatch, "first", 0, task_rows(0, 60), "app")
    with pytest.raises(PublishFencedError, match="query first has written this version of txnAppId"):
        foreach_batch(served, monkeypatch, "second", 0, task_rows(60), "app")
    foreach_batch(served, monkeypatch, "first", 1, task_rows(60, 60), "app")
    with pytest.raises(PublishFencedError, match="a later batch"):
        foreach_batch(served, monkeypatch, "second", 0, task_rows(0), "app")
    assert numbers(served) == of_partitions(120)


def test_a_streaming_task_without_a_query_id_cannot_be_exact(
    served: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module.TaskContext, "get", lambda: None)
    made = writer_module.PacelineStreamWriter(exact(served), ("value",))
    with pytest.raises(UnsupportedOperationError, match="no query id"):
        made.write(iter([]))
