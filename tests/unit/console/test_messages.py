"""Records: the request, the filter, the rows, and the limits of reading."""

from collections.abc import Iterable
from typing import Any

import pytest

from paceline.console.pages.messages import Wish, matches, messages, place_of, row_of, wish_of
from paceline.console.pages.view import link
from paceline.console.service.records import read, read_one
from paceline.model.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline_client import ConsumerRecord
from tests.unit.console.test_values import DECODER

KEY, VALUE = b"\x00\xff", b'{"n":1}'


def record(offset: int, partition: int = 0, value: bytes | None = VALUE, **more: Any) -> ConsumerRecord:
    given = {"timestamp_ms": 1_000 + offset, "key": KEY, "headers": (("kind", b"first"),)} | more
    return ConsumerRecord("t", partition, offset, value=value, **given)


class FakeConsumer:
    """Serves the given records; positions behave as those of a consumer."""

    def __init__(self, *records: ConsumerRecord, ends: dict[int, int] | None = None) -> None:
        self.records = records
        last = {one.partition: one.offset + 1 for one in records}
        self.ends = {TopicPartition("t", one): end for one, end in (ends or last).items()}
        self.at: dict[TopicPartition, int] = {}
        self.chunk = 1_000

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {one: self.ends.get(one, 0) for one in partitions}

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return {
            tp: min((one for one in self.records if one.partition == tp.partition and (one.timestamp_ms or 0) >= ms),
                    key=lambda one: one.offset, default=None)
            for tp, ms in times.items()
        }  # fmt: skip

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.at = dict.fromkeys(partitions, 0)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.at[tp] = offset

    def position(self, tp: TopicPartition) -> int:
        return self.at[tp]

    def poll(self, _timeout_ms: int, limit: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        for tp, at in self.at.items():
            own = [one for one in self.records if one.partition == tp.partition and one.offset >= at]
            own = own[: min(limit, self.chunk)]
            self.at[tp] = own[-1].offset + 1 if own else self.ends[tp]
            if own:
                found[tp] = own
        return found


def offsets(consumer: FakeConsumer, wish: Wish, known: tuple[int, ...] = (0,)) -> list[int]:
    return [one.offset for one in read(consumer, "t", known, wish).records]  # type: ignore[arg-type]


TEN = [record(one) for one in range(10)]


def test_a_request_without_parameters_wants_the_newest_fifty() -> None:
    assert wish_of({}) == Wish()
    assert wish_of({"partition": "3", "from": "offset", "place": "7", "n": "5"}).partition == 3


@pytest.mark.parametrize(
    "query",
    [
        {"n": "0"}, {"n": "501"}, {"n": "x"}, {"mib": "33"}, {"seconds": "11"}, {"size": "1"}, {"from": "?"},
        {"in": "x"}, {"as": "xml"}, {"from": "offset"}, {"from": "offset", "place": "-1"}, {"at": "0"}, {"at": "a:1"},
        {"partition": "-1"}, {"at": ",".join(f"{one}:0" for one in range(201))}, {"n": "٣"},
        {"from": "offset", "place": "9" * 19},
    ],
)  # fmt: skip
def test_a_bad_parameter_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"must be|may name"):
        wish_of(query)


def test_the_newest_records_come_first_from_all_partitions() -> None:
    consumer = FakeConsumer(*TEN, record(0, 1, timestamp_ms=1_004))
    found = read(consumer, "t", (0, 1), Wish(records=7))  # type: ignore[arg-type]
    assert [(one.partition, one.offset) for one in found.records] == [
        (0, 9), (0, 8), (0, 7), (0, 6), (0, 5), (1, 0), (0, 4),
    ]  # fmt: skip
    assert found.positions == {0: 10, 1: 1} and found.reason.startswith("the end")


def test_reading_starts_at_an_offset_or_a_time_and_stops_after_records() -> None:
    assert offsets(FakeConsumer(*TEN), Wish(start="offset", place="7")) == [7, 8, 9]
    assert offsets(FakeConsumer(*TEN), Wish(start="time", place="@1008")) == [8, 9]
    assert offsets(FakeConsumer(*TEN), Wish(start="offset", place="99")) == []
    found = read(FakeConsumer(*TEN), "t", (0,), Wish(start="start", records=3))  # type: ignore[arg-type]
    assert (len(found.records), found.positions, found.reason) == (3, {0: 3}, "3 records were found")
    assert offsets(FakeConsumer(*TEN), Wish(start="start", positions={0: 3}, records=2)) == [3, 4]


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="place must be a time"):
        offsets(FakeConsumer(*TEN), Wish(start="time", place="soon"))


def test_reading_stops_after_bytes_and_after_seconds() -> None:
    big = [record(one, value=b"x" * (1 << 19)) for one in range(8)]
    found = read(FakeConsumer(*big), "t", (0,), Wish(start="start", mebibytes=1, records=1))  # type: ignore[arg-type]
    assert found.scanned == 1
    slow = FakeConsumer(*big)
    slow.chunk = 1
    found = read(slow, "t", (0,), Wish(start="start", mebibytes=1, text="y"))  # type: ignore[arg-type]
    assert (found.reason, found.scanned, found.positions) == ("1 MiB were read", 2, {0: 2})
    late = read(FakeConsumer(*big), "t", (0,), Wish(start="start", seconds=-1))  # type: ignore[arg-type]
    assert late.reason.endswith("s have passed") and late.positions == {0: 0}


def test_a_hole_at_the_end_of_a_compacted_log_does_not_hold_the_reader_up() -> None:
    assert offsets(FakeConsumer(record(2), ends={0: 9}), Wish(start="start")) == [2]
    appended = FakeConsumer(record(2), record(7), ends={0: 5})  # after the end was read
    found = read(appended, "t", (0,), Wish(start="start"))  # type: ignore[arg-type]
    assert (len(found.records), found.positions, found.reason) == (1, {0: 5}, "the end of the log is reached")


def test_a_follower_begins_at_the_end_and_shows_the_newest_first() -> None:
    consumer = FakeConsumer(*TEN)
    first = read(consumer, "t", (0,), Wish(start="tail"))  # type: ignore[arg-type]
    assert (first.records, first.positions) == ([], {0: 10})
    assert offsets(consumer, Wish(start="tail", positions={0: 8})) == [9, 8]
    address = messages("t", Wish(start="tail"), first, None, True)["next"]
    assert address.startswith("/topics/t/messages?from=tail") and address.endswith("at=0%3A10")


def test_only_two_hundred_partitions_are_read_at_a_time_and_the_page_says_so() -> None:
    found = read(FakeConsumer(), "t", range(100_000), Wish())  # type: ignore[arg-type]
    assert (len(found.positions), found.left_out) == (200, 99_800)
    assert messages("t", Wish(), found, None, True)["left_out"] == 99_800
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 7"):
        offsets(FakeConsumer(), Wish(partition=7))


@pytest.mark.parametrize(
    ("inside", "text", "found"),
    [
        ("any", '"n":1', True), ("value", '"n":1', True), ("key", '"n":1', False), ("header", "first", True),
        ("any", "kind", True), ("value", "first", False), ("any", "zzz", False), ("any", "", True),
    ],
)  # fmt: skip
def test_a_filter_looks_for_a_text_where_it_is_told_to(inside: str, text: str, found: bool) -> None:
    assert matches(Wish(inside=inside, text=text), record(0)) is found
    assert not matches(Wish(text="x"), record(0, value=None, key=None, headers=()))


def test_without_show_records_a_row_has_sizes_only() -> None:
    row = row_of(Wish(), record(0), None, False)
    assert (row["key_bytes"], row["value_bytes"]) == (2, 7)
    assert not row.keys() & {"key", "value", "headers"}


def test_a_row_shows_a_binary_key_as_hex_and_links_to_the_whole_value() -> None:
    row = row_of(Wish(), record(0), None, True)
    assert (row["key_form"], row["value_form"], row["headers"]) == ("hex", "json", [["kind", "first"]])
    assert link(row, "value") == "/topics/t/record?partition=0&offset=0&part=value"
    assert link(row | {"value_bytes": None}, "value") == ""


def test_a_value_is_shown_as_the_message_of_its_topic_and_a_key_is_not() -> None:
    row = row_of(Wish(), record(0, value=b"\x08\x07", key=b"k"), DECODER, True)
    assert (row["value_form"], row["key"], row["key_form"]) == ("protobuf", "k", "text")
    assert row_of(Wish(form="hex"), record(0, value=b"\x08\x07"), DECODER, True)["value_form"] == "hex"


def test_one_record_is_found_by_its_offset_or_refused() -> None:
    where = TopicPartition("t", 0)
    assert read_one(FakeConsumer(*TEN), where, 4, 5.0).offset == 4  # type: ignore[arg-type]
    for offset in (10, 99):
        with pytest.raises(OffsetOutOfRangeError):
            read_one(FakeConsumer(*TEN), where, offset, 5.0)  # type: ignore[arg-type]
    with pytest.raises(OffsetOutOfRangeError, match="next one is at 2"):
        read_one(FakeConsumer(record(2)), where, 1, 5.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("query", [{}, {"partition": "0"}, {"partition": "x", "offset": "1"}, {"offset": "1"}])
def test_a_download_without_a_place_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must be a whole number"):
        place_of(query)
