"""Idempotent producers: the table of docs/protocol/log-format.md#producer-state, and the known snapshot."""

import pytest

from paceline.log.checkpoint import DamagedFileError
from paceline.log.producer_state import ProducerStateManager, decode_snapshot
from paceline.log.record_batch import BatchHeader
from paceline.model.errors import InvalidProducerEpochError, OutOfOrderSequenceNumberError

V2 = bytes.fromhex(
    "0001 63e969dd 00000001 0000000000000fa0 0000 00000009 000000000000006d 00000009 0000018bcfe56800"
    "ffffffff ffffffffffffffff"
)
EARLIER = bytes.fromhex(
    "0001 7b960b14"
    "0000000000000fa0 00000004 000000000000005e 00000002 0000018bcfe56800"
    "0000000000000fa0 00000001 000000000000005b 00000001 0000018bcfe56800"
)
LAST = 2**31 - 1


def header(
    sequence: int, count: int = 1, epoch: int = 0, producer: int = 4000, base: int = 0, attributes: int = 0
) -> BatchHeader:
    return BatchHeader(base, 0, 0, 2, 0, attributes, count - 1, 0, 1_700_000_000_000, producer, epoch, sequence, count)


def known(*batches: BatchHeader) -> ProducerStateManager:
    manager = ProducerStateManager()
    for one in batches:
        manager.update(one)
    return manager


def test_the_known_snapshot_is_written_and_read_byte_for_byte() -> None:
    manager = known(header(0, 10, base=100))
    assert manager.encode() == V2
    again = ProducerStateManager()
    again.load(V2)
    assert again.encode() == V2
    assert again.get(4000) is not None and again.entries[0].last_sequence == 9


def test_the_known_earlier_batches_are_written_and_read_byte_for_byte() -> None:
    manager = known(header(0, 2, base=90), header(2, 3, base=92), header(5, 10, base=100))
    snapshot = manager.encode()
    earlier = manager.encode_earlier(snapshot)
    assert earlier == EARLIER
    again = ProducerStateManager()
    again.load(snapshot, EARLIER)
    assert again.entries == manager.entries
    assert known(header(0, 10, base=100)).encode_earlier(V2) is None


@pytest.mark.parametrize(
    ("written", "expected"),
    [  # printed by java.util.HashMap.keySet() of Java 17 after these insertions
        (
            [4015, 4000, 70000, 1, 33, 1 << 40, (1 << 40) + 17],
            [4000, 1 << 40, 70000, 1, 33, (1 << 40) + 17, 4015],
        ),
        (
            [7 * i + 1000 - 100 * (i % 3) for i in range(13)],
            [928, 835, 1063, 1000, 970, 907, 877, 814, 1042, 949, 856, 1084, 1021],
        ),
    ],
)
def test_a_snapshot_has_its_producers_in_the_order_of_kafkas_map(written: list[int], expected: list[int]) -> None:
    found = ProducerStateManager()
    for producer_id in written:
        found.update(header(0, producer=producer_id))
    assert [entry.producer_id for entry in decode_snapshot(found.encode())] == expected


def test_a_snapshot_without_producers_has_ten_bytes() -> None:
    assert len(ProducerStateManager().encode()) == 10


@pytest.mark.parametrize("cut", [0, 5, 30, 55])
def test_a_damaged_snapshot_is_reported_and_changes_nothing(cut: int) -> None:
    manager = known(header(0, 10))
    before = manager.encode()
    with pytest.raises(DamagedFileError):
        manager.load(V2[:cut])
    with pytest.raises(DamagedFileError):
        manager.load(V2[:-1] + b"\x00")
    with pytest.raises(DamagedFileError):
        manager.load(b"\x00\x02" + V2[2:])
    assert manager.encode() == before


ACCEPTED = [
    ("no state: any sequence", [], header(17)),
    ("the next sequence", [header(0, 10)], header(10)),
    ("a newer epoch from sequence 0", [header(0, 10)], header(0, epoch=1)),
    ("the wrap to 0", [header(LAST - 1, 2)], header(0)),
    ("the next after a batch across the wrap", [header(LAST, 3)], header(2)),
]
REFUSED = [
    ("a gap", [header(0, 10)], header(11), OutOfOrderSequenceNumberError),
    ("an overlap", [header(0, 10)], header(5, 2), OutOfOrderSequenceNumberError),
    ("an older epoch", [header(0, epoch=3)], header(1, epoch=2), InvalidProducerEpochError),
    ("a newer epoch not from 0", [header(0, 10)], header(10, epoch=1), OutOfOrderSequenceNumberError),
    ("another producer's sequence", [header(0, 10), header(0, producer=9)], header(1), OutOfOrderSequenceNumberError),
]


@pytest.mark.parametrize(("case", "before", "batch"), ACCEPTED, ids=[case[0] for case in ACCEPTED])
def test_a_batch_with_the_next_sequence_or_of_an_unknown_producer_is_accepted(
    case: str, before: list[BatchHeader], batch: BatchHeader
) -> None:
    manager = known(*before)
    assert manager.find_duplicate(batch) is None
    manager.check(batch)


@pytest.mark.parametrize(("case", "before", "batch", "error"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_batch_with_a_wrong_sequence_or_a_lower_epoch_is_refused(
    case: str, before: list[BatchHeader], batch: BatchHeader, error: type[Exception]
) -> None:
    manager = known(*before)
    before_bytes = manager.encode()
    with pytest.raises(error):
        manager.check(batch)
    assert manager.encode() == before_bytes


def test_the_last_five_batches_are_recognised_and_older_ones_are_not() -> None:
    batches = [header(2 * i, 2, base=100 + 2 * i) for i in range(7)]
    manager = known(*batches)
    for batch in batches[2:]:
        found = manager.find_duplicate(batch)
        assert found is not None
        assert (found.first_offset, found.last_offset) == (batch.base_offset, batch.last_offset)
    for batch in batches[:2]:
        assert manager.find_duplicate(batch) is None
    assert manager.find_duplicate(batches[5]._replace(producer_epoch=1)) is None
    assert manager.find_duplicate(header(10, 1)) is None


def test_a_newer_epoch_removes_the_batches_of_the_earlier_one() -> None:
    manager = known(header(0, 10), header(0, 5, epoch=1))
    assert manager.find_duplicate(header(0, 10)) is None
    manager.check(header(5, epoch=1))


def test_idle_producers_expire_and_those_in_a_transaction_do_not() -> None:
    manager = known(header(0), header(0, producer=5, attributes=0x10))
    now = 1_700_000_000_000
    assert manager.remove_expired(now + 100, 100) == 0
    assert manager.remove_expired(now + 101, 100) == 1
    assert [entry.producer_id for entry in manager.entries] == [5]


def test_an_abort_ends_a_transaction_and_the_oldest_open_one_is_known() -> None:
    manager = known(
        header(0, 3, producer=1, base=10, attributes=0x10), header(0, 3, producer=2, base=13, attributes=0x10)
    )
    assert manager.first_undecided_offset == 10
    aborted = manager.end_transaction(header(-1, producer=1, base=16, attributes=0x30), 0, 7)
    assert aborted == (1, 10, 16, 13)
    assert manager.first_undecided_offset == 13
    assert manager.end_transaction(header(-1, producer=2, base=17, attributes=0x30), 1, 7) is None
    assert manager.first_undecided_offset is None
    entry = manager.get(1)
    assert entry is not None and (entry.coordinator_epoch, entry.last_sequence) == (7, 2)
