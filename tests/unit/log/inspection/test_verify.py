"""Each kind of damage at rest: `Verifier` names the file, the byte, the rule and the remedy, and changes nothing."""

import struct
import tracemalloc
from collections.abc import Callable

import pytest

from paceline.log.inspection.verify import ADVICE, Verifier
from paceline.log.log_config import LogConfig
from paceline.log.record_batch import NewRecord, encode_batch, parse_header, set_crc
from tests.unit.log.helpers import DIRECTORY, NOW_MS, ROOT, TP, batch, manager
from tests.unit.log.memory_files import MemoryFiles

FIRST, LAST = "00000000000000000000", "00000000000000000012"
NAME = "orders-eu.v1-0"
BATCH = len(batch(b"a0", b"b0"))
Damage = Callable[[MemoryFiles], None]


def sound() -> MemoryFiles:
    """A log after a clean stop: two segments of six batches of two records; epochs 0 and 1."""
    files = MemoryFiles()
    found, _ = manager(files, LogConfig(segment_bytes=6 * BATCH + 6, index_interval_bytes=50))
    log = found.get_or_create(TP, "A" * 22, True)
    for i in range(12):
        values = b"a%d" % (i % 10), b"b%d" % (i % 10)
        log.append_as_leader(batch(*values, timestamp=1000 + 10 * i, producer=(9, 0, 2 * i)), i // 6, NOW_MS)
    found.shutdown()
    return files


def findings(files: MemoryFiles, directory: str = ROOT) -> list[tuple[str, int, str, bool]]:
    found = list(Verifier(files, directory).findings())
    assert all(one["advice"] == ADVICE[one["rule"]] and one["message"] for one in found)
    return [(one["file"], one["position"], one["rule"], one["broken"]) for one in found]


def replaced(name: str, position: int, data: bytes) -> Damage:
    """Damage that replaces bytes of a file of the log; a position beyond the end appends."""

    def damage(files: MemoryFiles) -> None:
        files.contents[f"{DIRECTORY}/{name}"][position : position + len(data)] = data

    return damage


def with_text(path: str, text: str) -> Damage:
    return lambda files: files.contents.__setitem__(f"{ROOT}/{path}", bytearray(text.encode()))


def cut(name: str, size: int) -> Damage:
    return lambda files: files.truncate(f"{DIRECTORY}/{name}", size)


def without_marker(damage: Damage) -> Damage:
    """Damage after an unclean stop."""

    def both(files: MemoryFiles) -> None:
        files.remove(f"{ROOT}/.kafka_cleanshutdown")
        damage(files)

    return both


def with_field(byte: int, value: int) -> Damage:
    """Another int32 in the header of the first batch, with the checksum that belongs to it."""

    def damage(files: MemoryFiles) -> None:
        data = files.contents[f"{DIRECTORY}/{FIRST}.log"]
        first = bytearray(data[:BATCH])
        struct.pack_into(">i", first, byte, value)
        set_crc(first, BATCH)
        data[:BATCH] = first

    return damage


def without_epochs_and_back_to_0(files: MemoryFiles) -> None:
    files.remove(f"{DIRECTORY}/leader-epoch-checkpoint")
    replaced(f"{LAST}.log", BATCH + 12, struct.pack(">i", 0))(files)


def without_first_segment(files: MemoryFiles) -> None:
    for path in [path for path in files.contents if FIRST in path]:
        files.remove(path)


def at(segment: str, number: int, byte: int = 0) -> tuple[str, int]:
    return f"{NAME}/{segment}.log", number * BATCH + byte


LOG = f"{FIRST}.log"
CASES: dict[str, tuple[Damage, list[tuple[str, int, str, bool]]]] = {
    "a flipped byte of a checksum": (
        replaced(LOG, BATCH + 17, b"\0"), [(*at(FIRST, 1, 17), "batch", True)],
    ),
    "a flipped byte of a record": (
        replaced(LOG, 3 * BATCH - 2, b"~"), [(*at(FIRST, 2, 17), "batch", True)],
    ),
    "offsets that go back": (
        replaced(LOG, 2 * BATCH, struct.pack(">q", 1)),
        [(*at(FIRST, 2), "batch", True), (f"{NAME}/{FIRST}.timeindex", 12, "index", True)],
    ),
    "offsets of the next segment": (
        replaced(LOG, 5 * BATCH, struct.pack(">q", 12)),
        [
            (*at(FIRST, 5, 23), "batch", True),
            (*at(FIRST, 5, 12), "batch", True),
            (f"{NAME}/{FIRST}.index", 32, "index", True),
            (*at(LAST, 0), "batch", True),
        ],
    ),
    "an unknown magic": (
        replaced(LOG, 4 * BATCH + 16, b"\1"), [(*at(FIRST, 4), "batch", True)],
    ),
    "a length beyond the file": (
        replaced(LOG, 4 * BATCH + 8, b"\1"), [(*at(FIRST, 4), "batch", True)],
    ),
    "a wrong number of records": (
        with_field(57, 1), [(*at(FIRST, 0, 61), "batch", True)],
    ),
    "a record beyond the last offset": (
        with_field(23, 0), [(*at(FIRST, 0, 61), "batch", True)],
    ),
    "an unknown magic in the last segment": (
        replaced(f"{LAST}.log", 4 * BATCH + 16, b"\1"), [(*at(LAST, 4), "batch", True)],
    ),
    "a leader epoch that goes back": (
        without_epochs_and_back_to_0, [(*at(LAST, 1, 12), "batch", True)],
    ),
    "a leader epoch that differs from the file": (
        replaced(LOG, 5 * BATCH + 12, struct.pack(">i", 1)), [(*at(FIRST, 5, 12), "batch", True)],
    ),
    "a batch that was cut off": (
        without_marker(cut(f"{LAST}.log", 6 * BATCH - 10)),
        [
            (*at(LAST, 5), "interrupted append", True),
            ("recovery-point-offset-checkpoint", 4, "missing records", True),
        ],
    ),
    "records above the recovery point are missing": (
        without_marker(cut(f"{LAST}.log", 4 * BATCH)),
        [
            (f"{NAME}/{LAST}.index", 24, "index", True),
            (f"{NAME}/{LAST}.timeindex", 36, "index", True),
            ("recovery-point-offset-checkpoint", 4, "missing records", True),
        ],
    ),
    "a high watermark above the end": (
        with_text("replication-offset-checkpoint", "0\n2\nx-orders-eu.v1 0 25\norders-eu.v1 0 25\n"),
        [("replication-offset-checkpoint", 24, "missing records", True)],
    ),
    "a segment that the clean stop has listed": (
        without_first_segment,
        [(NAME, 0, "missing records", True)],
    ),
    "index entries out of order": (
        replaced(f"{FIRST}.index", 16, struct.pack(">ii", 3, 3 * BATCH)),
        [(f"{NAME}/{FIRST}.index", 16, "index", True)],
    ),
    "an index entry above the next": (
        replaced(f"{FIRST}.index", 0, struct.pack(">i", 9)), [(f"{NAME}/{FIRST}.index", 8, "index", True)],
    ),
    "an index entry within a batch": (
        replaced(f"{FIRST}.index", 4, struct.pack(">i", BATCH + 1)), [(f"{NAME}/{FIRST}.index", 0, "index", True)],
    ),
    "an index entry beyond the file": (
        replaced(f"{FIRST}.index", 40, struct.pack(">ii", 20, 7 * BATCH)),
        [(f"{NAME}/{FIRST}.index", 40, "index", True)],
    ),
    "half an index entry": (
        replaced(f"{FIRST}.index", 40, b"\0\0\0\1"), [(f"{NAME}/{FIRST}.index", 40, "index", True)],
    ),
    "a timestamp that no batch has": (
        replaced(f"{FIRST}.timeindex", 0, struct.pack(">q", 77)), [(f"{NAME}/{FIRST}.timeindex", 0, "index", True)],
    ),
    "timestamps out of order": (
        replaced(f"{FIRST}.timeindex", 12, struct.pack(">q", 77)), [(f"{NAME}/{FIRST}.timeindex", 12, "index", True)],
    ),
    "an index in its full size": (
        replaced(f"{FIRST}.index", 40, bytes(80)), [(f"{NAME}/{FIRST}.index", 40, "index to rebuild", False)],
    ),
    "no index": (
        lambda files: files.remove(f"{DIRECTORY}/{FIRST}.index"),
        [(f"{NAME}/{FIRST}.index", 0, "index to rebuild", False)],
    ),
    "half a transaction": (
        with_text(f"{NAME}/{FIRST}.txnindex", "x" * 33), [(f"{NAME}/{FIRST}.txnindex", 0, "transaction index", True)],
    ),
    "transactions out of order": (
        lambda files: files.append(
            f"{DIRECTORY}/{FIRST}.txnindex", struct.pack(">hqqqqhqqqq", 0, 1, 2, 4, 5, 0, 2, 1, 3, 5)
        ),
        [(f"{NAME}/{FIRST}.txnindex", 34, "transaction index", True)],
    ),
    "a flipped byte of a producer snapshot": (
        replaced(f"{LAST}.snapshot", 12, b"~"), [(f"{NAME}/{LAST}.snapshot", 0, "producer snapshot", True)],
    ),
    "a flipped byte of earlier batches": (
        replaced(f"{LAST}.earlier-batches", 12, b"~"), [(f"{NAME}/{LAST}.snapshot", 0, "producer snapshot", True)],
    ),
    "epochs that do not ascend": (
        with_text(f"{NAME}/leader-epoch-checkpoint", "0\n2\n3 0\n1 12\n"),
        [(f"{NAME}/leader-epoch-checkpoint", 8, "leader epochs", True)],
    ),
    "a wrong number of epochs": (
        with_text(f"{NAME}/leader-epoch-checkpoint", "0\n3\n0 0\n1 12\n"),
        [(f"{NAME}/leader-epoch-checkpoint", 2, "leader epochs", True)],
    ),
    "a checkpoint of an unknown version": (
        with_text("log-start-offset-checkpoint", "1\n0\n"),
        [("log-start-offset-checkpoint", 0, "offset checkpoint", True)],
    ),
    "a checkpoint line that is no number": (
        with_text("replication-offset-checkpoint", "0\n2\norders-eu.v1 0 1\nt x 1\n"),
        [("replication-offset-checkpoint", 21, "offset checkpoint", True)],
    ),
    "a topic id that is too short": (
        with_text(f"{NAME}/partition.metadata", "version: 0\ntopic_id: A"),
        [(f"{NAME}/partition.metadata", 0, "topic id", True)],
    ),
    "an identity of another version": (
        with_text("meta.properties", "version=7\n"), [("meta.properties", 0, "identity", True)],
    ),
    "damage that a start has found": (
        with_text(f"{NAME}/known-damage", "version: 0\ncut: lacks records\n"),
        [(f"{NAME}/known-damage", 0, "missing records", True)],
    ),
    "a stray file": (
        with_text(f"{NAME}/core.1234", "x"), [(f"{NAME}/core.1234", 0, "stray", False)],
    ),
    "a stray file beside the logs": (
        with_text("notes.txt", "x"), [("notes.txt", 0, "stray", False)],
    ),
    "a log that was set aside": (
        lambda files: files.make_directory(f"{ROOT}/t-0.{'0' * 32}-damaged"),
        [(f"t-0.{'0' * 32}-damaged", 0, "stray", False)],
    ),
    "an interrupted compaction": (
        with_text(f"{NAME}/{FIRST}.log.cleaned", "x"), [(f"{NAME}/{FIRST}.log.cleaned", 0, "leftover", False)],
    ),
    "an index without its segment": (
        with_text(f"{NAME}/00000000000000000099.index", ""),
        [(f"{NAME}/00000000000000000099.index", 0, "leftover", False)],
    ),
}  # fmt: skip


def test_a_log_after_a_clean_stop_breaks_no_rule() -> None:
    assert findings(sound()) == []
    assert findings(sound(), DIRECTORY) == []


def test_an_entry_of_a_checkpoint_may_belong_to_the_copy_of_a_move() -> None:
    """A start while the other directory was offline has created the log again beside its half copy."""
    files = sound()
    files.make_directory(f"{ROOT}/{NAME}.{'0' * 32}-future")
    with_text("recovery-point-offset-checkpoint", f"0\n1\n{' '.join(NAME.rsplit('-', 1))} 999\n")(files)
    assert findings(files) == []


@pytest.mark.parametrize("case", CASES)
def test_damage_is_reported_with_file_byte_rule_and_remedy(case: str) -> None:
    damage, expected = CASES[case]
    files = sound()
    damage(files)
    before = {path: bytes(content) for path, content in files.contents.items()}
    files.operations.clear()
    assert findings(files) == expected
    assert {path: bytes(content) for path, content in files.contents.items()} == before
    assert {operation for operation, _ in files.operations} <= {"read_at", "size", "list_directory"}


def test_every_rule_has_a_case() -> None:
    rules = {rule for _, expected in CASES.values() for _, _, rule, _ in expected}
    assert ADVICE.keys() - rules == {"storage"}


def test_a_file_that_cannot_be_read_does_not_end_the_check_of_the_others() -> None:
    files = sound()
    files.fails = lambda operation, path: operation == "read_at" and path.endswith(f"{LAST}.log")
    assert findings(files)[0] == (f"{NAME}/{LAST}.log", 0, "storage", True)


class OneHugeSegment(MemoryFiles):
    """A segment of 1 GiB: batches of 1 MiB, made when they are read."""

    def __init__(self, header: bytes | None = None) -> None:
        super().__init__()
        self.make_directory(DIRECTORY)
        self.path = f"{DIRECTORY}/{FIRST}.log"
        self.contents[self.path] = bytearray()
        self.header = header
        self.batch = encode_batch([NewRecord(1000, b"k", bytes((1 << 20) - 73))])
        assert len(self.batch) == 1 << 20

    def size(self, path: str) -> int:
        return 1 << 30 if path == self.path else super().size(path)

    def read_at(self, path: str, position: int, length: int) -> bytes:
        if path != self.path:
            return super().read_at(path, position, length)
        if self.header is not None:
            return (self.header[position:] + bytes(length))[:length]
        number, start = divmod(position, 1 << 20)
        assert start + length <= 1 << 20, "the batches are read one by one"
        piece = self.batch[start : start + length]
        return piece if start else struct.pack(">q", number) + piece[8:]


def peak_bytes(files: MemoryFiles) -> tuple[int, list[tuple[str, int, str, bool]]]:
    tracemalloc.start()
    try:
        found = findings(files, DIRECTORY)
        return tracemalloc.get_traced_memory()[1], found
    finally:
        tracemalloc.stop()


def test_a_segment_of_1_gib_is_checked_in_memory_for_a_few_batches() -> None:
    peak, found = peak_bytes(OneHugeSegment())
    assert {rule for _, _, rule, _ in found} == {"index to rebuild"}
    assert peak < 16 << 20


def test_a_damaged_length_of_1_gib_is_not_read_at_once() -> None:
    header = bytearray(batch(b"x")[:61])
    struct.pack_into(">i", header, 8, (1 << 30) - 12)
    assert parse_header(header).size == 1 << 30
    peak, found = peak_bytes(OneHugeSegment(bytes(header)))
    assert (f"{FIRST}.log", 17, "batch", True) in found
    assert peak < 16 << 20
