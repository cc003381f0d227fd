import gc

import pytest

from paceline.log.record_batch import NewRecord, crc_of, encode_batch
from paceline.model.errors import CorruptMessageError, InvalidRequestError
from paceline.model.identifiers import TopicPartition
from paceline_client.errors import LogTruncatedError
from paceline_client.subscription import Assignment, OffsetReset, PartitionState

TP = TopicPartition("t", 0)


def batch(first: int, count: int, epoch: int = 1) -> bytes:
    return encode_batch(
        [NewRecord(1, None, b"%d" % (first + index)) for index in range(count)], base_offset=first, leader_epoch=epoch
    )


def at(offset: int, *batches: bytes) -> PartitionState:
    state = PartitionState(TP, OffsetReset.EARLIEST)
    state.seek(offset)
    if batches:
        state.take_fetched(b"".join(batches), 100)
    return state


def offsets(state: PartitionState, count: int = 1_000) -> list[int]:
    return [record.offset for record in state.hand_out(count, verify=True)]


def test_a_fetch_may_begin_before_the_position() -> None:
    state = at(3, batch(0, 5), batch(5, 2))
    assert offsets(state) == [3, 4, 5, 6]
    assert (state.position, state.fetch_offset, state.position_epoch) == (7, 7, 1)


def test_a_batch_cut_at_the_end_is_fetched_again() -> None:
    state = at(0, batch(0, 3), batch(3, 3)[:-4])
    assert state.fetch_offset == 3
    assert offsets(state) == [0, 1, 2]


@pytest.mark.parametrize("data", [batch(0, 3)[:40], bytes(200), batch(0, 2)])
def test_a_fetch_without_a_whole_batch_or_a_new_record_is_corrupt(data: bytes) -> None:
    state = at(5)
    with pytest.raises(CorruptMessageError):
        state.take_fetched(data, 100)
    assert state.fetch_offset == 5


@pytest.mark.parametrize("room", [1, 2, 3, 4, 7])
def test_every_record_is_returned_once_with_the_position_after_it_for_any_limit(room: int) -> None:
    state = at(2, batch(0, 4), batch(4, 1), batch(5, 6))
    seen: list[int] = []
    while handed := offsets(state, room):
        assert len(handed) <= room
        seen.extend(handed)
        assert state.position == handed[-1] + 1
    assert seen == list(range(2, 11))


def test_raw_and_decoded_reads_may_be_mixed() -> None:
    state = at(0, batch(0, 4))
    state.take_fetched(batch(4, 2), 100)
    assert offsets(state, 3) == [0, 1, 2]
    raw = state.hand_out_raw()
    assert raw is not None
    assert (raw.first_offset, raw.next_offset) == (3, 4)
    assert offsets(state) == [4, 5]


def test_a_batch_emptied_by_compaction_moves_the_position() -> None:
    header = bytearray(encode_batch([NewRecord(1, None, b"x")])[:61])
    header[8:12] = (49).to_bytes(4, "big")
    header[23:27] = (6).to_bytes(4, "big")
    header[57:61] = bytes(4)
    header[17:21] = crc_of(header, 0, 61).to_bytes(4, "big")
    state = at(0, bytes(header), batch(7, 1))
    assert offsets(state) == [7]
    assert state.position == 8


def test_transaction_markers_are_skipped() -> None:
    marker = bytearray(batch(0, 1))
    marker[22] |= 0x20
    marker[17:21] = crc_of(marker, 0, len(marker)).to_bytes(4, "big")
    assert offsets(at(0, bytes(marker), batch(1, 1))) == [1]


def test_a_damaged_batch_keeps_the_position_before_it_and_enables_garbage_collection_again() -> None:
    damaged = bytearray(batch(2, 2))
    damaged[-1] ^= 0xFF
    state = at(0, batch(0, 2), bytes(damaged))
    assert offsets(state) == [0, 1]
    with pytest.raises(CorruptMessageError):
        state.hand_out(10, verify=True)
    assert (state.position, state.fetch_offset) == (2, 2)
    state.take_fetched(bytes(damaged), 100)
    with pytest.raises(CorruptMessageError):
        state.hand_out(10, verify=False)
    assert gc.isenabled()


def test_decoding_restores_the_state_of_garbage_collection() -> None:
    offsets(at(0, batch(0, 3)))
    assert gc.isenabled()
    gc.disable()
    try:
        offsets(at(0, batch(0, 3)))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_divergence_below_the_position_is_reported_and_above_it_is_not() -> None:
    state = at(0, batch(0, 4), batch(4, 4))
    offsets(state, 4)
    state.truncated(1, 6)
    assert state.error is None
    assert (state.position, state.fetch_offset, state.fetch_epoch, list(state.chunks)) == (4, 4, 1, [])
    state.truncated(0, 2)
    error = state.take_error()
    assert isinstance(error, LogTruncatedError)
    assert (error.position, error.divergent_offset) == (4, 2)
    assert (state.position, state.fetch_epoch) == (2, 0)
    assert state.take_error() is None


def test_a_seek_discards_responses_in_flight() -> None:
    state = at(0)
    before = state.generation
    state.seek(0)
    state.seek_to(OffsetReset.LATEST)
    assert state.generation == before + 2
    with pytest.raises(InvalidRequestError):
        state.seek(-1)


def test_partitions_that_stay_assigned_keep_their_position_and_are_read_in_turn() -> None:
    assignment = Assignment()
    others = [TopicPartition("t", index) for index in range(3)]
    assignment.assign(others, OffsetReset.EARLIEST)
    assignment.state(others[1]).seek(9)
    assignment.assign(others[1:], OffsetReset.EARLIEST)
    assert assignment.state(others[1]).position == 9
    first = [assignment.in_turn()[0].topic_partition for _ in range(4)]
    assert set(first) == set(others[1:])
    with pytest.raises(InvalidRequestError):
        assignment.state(others[0])


def test_a_partition_missing_in_a_lagging_brokers_metadata_keeps_its_position() -> None:
    assignment = Assignment()
    assignment.assign([], OffsetReset.LATEST)
    assignment.set_partition_counts({"t": 2, "u": 1})
    last = assignment.state(TopicPartition("t", 1))
    assert last.reset is OffsetReset.EARLIEST
    last.seek(7)
    assignment.set_partition_counts({"t": 1})
    assert [state.topic_partition for state in assignment.states() if state.absent] == [TopicPartition("t", 1)]
    assignment.set_partition_counts({"t": 2, "u": 1})
    assert assignment.state(TopicPartition("t", 1)) is last
    assert (last.absent, last.position) == (False, 7)


def test_records_of_an_epoch_that_the_leader_lacks_are_reported_as_truncated() -> None:
    state = at(0, batch(0, 4, epoch=3), batch(4, 4, epoch=5))
    offsets(state)
    assert (state.position, state.position_epoch) == (8, 5)
    state.truncated(3, 20)
    error = state.take_error()
    assert isinstance(error, LogTruncatedError)
    assert (error.position, error.divergent_offset) == (8, 8)
    # The leader has epoch 3 up to 20, so it has nothing against this.
    assert (state.position, state.fetch_offset, state.fetch_epoch) == (8, 8, 3)
