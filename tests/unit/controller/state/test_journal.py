"""The controller journal: its encoding, the multis that it covers, and its maximum size."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.controller.state.journal import MAX_LIST_BYTES, ControllerJournal
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.interface import SetData
from paceline.coordination.znodes.journal import (
    JournalBatch,
    JournalEntry,
    decode_journal,
    encode_journal,
    first_sequence,
)
from paceline.model.identifiers import TopicPartition
from tests.unit.controller.cluster import short

PATH = znodes.CONTROLLER_JOURNAL


def entry_of(operation: SetData) -> JournalEntry:
    assert operation.path == PATH
    return decode_journal(PATH, operation.data)


def listed(entry: JournalEntry) -> list[str]:
    return sorted(map(short, entry.touched_after(entry.since)))


def numbered(count: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def journal_after(*touched: list[TopicPartition]) -> tuple[ControllerJournal, JournalEntry]:
    journal = ControllerJournal()
    journal.begin(7, None)
    entries = [entry_of(journal.advance(partitions)) for partitions in touched]
    return journal, entries[-1]


topics = st.text(alphabet="abcXYZ019._-", min_size=1, max_size=40).filter(lambda name: name not in (".", ".."))


@given(
    st.integers(0, 2**62),
    st.lists(st.lists(st.tuples(topics, st.integers(0, 2**31 - 1)), max_size=10, unique=True), max_size=4),
)
def test_a_journal_decodes_to_the_encoded_entry(since: int, batches: list[list[tuple[str, int]]]) -> None:
    written = [
        JournalBatch(since + number, tuple(TopicPartition(*one) for one in sorted(batch)))
        for number, batch in enumerate(batches, 1)
    ]
    found = decode_journal(PATH, encode_journal(since + len(batches), since, written))
    assert (found.sequence, found.since) == (since + len(batches), since)
    assert [replace(batch, partitions=tuple(sorted(batch.partitions))) for batch in found.batches] == written


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"[]",
        b"hello",
        b"{}",
        b'{"version":2,"sequence":1,"since":0,"batches":[]}',
        b'{"version":1,"sequence":1,"since":2,"batches":[]}',
        b'{"version":1,"sequence":-1,"since":-1,"batches":[]}',
        b'{"version":1,"sequence":"1","since":0,"batches":[]}',
        b'{"version":1,"sequence":9223372036854775808,"since":0,"batches":[]}',
        b'{"version":1,"sequence":1,"since":0,"batches":{}}',
        b'{"version":1,"sequence":1,"since":0,"batches":[{"sequence":2,"partitions":{}}]}',
        b'{"version":1,"sequence":1,"since":0,"batches":[{"sequence":1}]}',
        b'{"version":1,"sequence":1,"since":0,"batches":[{"sequence":1,"partitions":{"t":3}}]}',
        b'{"version":1,"sequence":1,"since":0,"batches":[{"sequence":1,"partitions":{"t":[-1]}}]}',
        b'{"version":1,"sequence":1,"since":0,"batches":[{"sequence":1,"partitions":{"t":[1.5]}}]}',
        b'{"version":1,"sequence":1,"since":0,"batches":[{"sequence":1,"partitions":{"../etc":[1]}}]}',
    ],
)
def test_foreign_data_is_refused_with_one_error(data: bytes | None) -> None:
    with pytest.raises(MalformedZnodeError):
        decode_journal(PATH, data)


def test_keys_of_later_versions_are_ignored() -> None:
    batch = {"sequence": 9, "partitions": {"t": [0]}, "reason": "none"}
    value = {"version": 1, "sequence": 9, "since": 8, "batches": [batch], "mood": "good"}
    expected = JournalEntry(9, 8, (JournalBatch(9, (TopicPartition("t", 0),)),))
    assert decode_journal(PATH, json.dumps(value).encode()) == expected


def test_the_journal_covers_several_multis() -> None:
    journal, entry = journal_after(numbered(2), numbered(3, "u"), [TopicPartition("t", 1), TopicPartition("t", 5)])
    assert entry.sequence == first_sequence(7) + 3 == journal.sequence
    assert entry.since == first_sequence(7)
    assert listed(entry) == ["t-0", "t-1", "t-5", "u-0", "u-1", "u-2"]
    assert sorted(map(short, entry.touched_after(entry.sequence - 1))) == ["t-1", "t-5"], (
        "the journal still lists the changes of the previous multi"
    )
    assert list(entry.touched_after(entry.sequence)) == []


def test_entries_that_do_not_fit_are_dropped_and_raise_since() -> None:
    step = MAX_LIST_BYTES // 8 // 2 - 10
    _, entry = journal_after(numbered(step), numbered(step, "u"), numbered(step, "v"))
    assert entry.since == first_sequence(7) + 1
    assert {partition.topic for partition in entry.touched_after(entry.since)} == {"u", "v"}
    assert len(encode_journal(entry.sequence, entry.since, entry.batches)) < MAX_LIST_BYTES


def test_a_multi_of_too_many_partitions_makes_standbys_read_all() -> None:
    _, entry = journal_after(numbered(3), numbered(MAX_LIST_BYTES // 8 + 1))
    assert entry == JournalEntry(first_sequence(7) + 2, first_sequence(7) + 2, ())


def test_long_topic_names_count_in_the_size() -> None:
    long = [TopicPartition(f"{number:0>249}", 0) for number in range(300)]
    journal = ControllerJournal()
    journal.begin(1, None)
    operation = journal.advance(long)
    assert len(operation.data) < MAX_LIST_BYTES
    assert entry_of(operation).batches == ()


def test_the_next_controller_continues_the_journal_of_its_predecessor() -> None:
    _, found = journal_after(numbered(2), numbered(4, "u"))
    journal = ControllerJournal()
    journal.begin(8, found)
    assert journal.applied == found.sequence, "the new controller has written nothing yet"
    entry = entry_of(journal.advance(numbered(1, "w")))
    assert entry.sequence == first_sequence(8) + 1
    assert entry.since == found.since, "a standby that followed the predecessor can still catch up"
    assert {partition.topic for partition in entry.touched_after(entry.since)} == {"t", "u", "w"}


def test_sequences_of_two_controller_epochs_are_never_equal() -> None:
    assert first_sequence(8) > first_sequence(7) + 2**31


def test_a_failed_multi_is_not_published() -> None:
    journal = ControllerJournal()
    journal.begin(1, None)
    journal.advance(numbered(1))
    journal.advance(numbered(2))
    journal.confirm(first_sequence(1) + 1)
    assert journal.applied == first_sequence(1), "not published before the states are in memory"
    journal.settle()
    assert journal.applied == first_sequence(1) + 1
