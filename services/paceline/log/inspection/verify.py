"""Check the files of a log directory or of one partition's folder, by the rules of docs/protocol/log-format.md."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Final

from paceline.log import checkpoint as text_files
from paceline.log import segment_names as names
from paceline.log.batch_file import BatchFile
from paceline.log.damage_file import DAMAGE_FILE, read_known_damage
from paceline.log.directory_loader import BOOT_ID_FILE
from paceline.log.directory_names import directory_name, is_future, parse_directory_name, parse_future_name
from paceline.log.files import FileKind, Files, join
from paceline.log.inspection.dump import CHECKPOINTS, UNREADABLE, Row, log_folders, rows_of
from paceline.log.leader_epoch_cache import LeaderEpochCache
from paceline.log.log_manager import LOCK_FILE
from paceline.log.missing_segments import missing_records
from paceline.log.record_batch import CRC_START, HEADER_BYTES, MAX_INT64
from paceline.log.session_file import SESSION_FILE
from paceline.log.snapshots import SNAPSHOT_SUFFIX

_REBUILT: Final = "start the broker: it copies the replica from the leader and keeps this copy as -damaged. "
_BUILT_AGAIN: Final = "remove the file while the broker is down: the next start rebuilds it from the batches"
ADVICE: Final = {
    "batch": _REBUILT + "Without another replica, give the records up: paceline topic trim T/P --before-offset N",
    "interrupted append": "start the broker: it removes these bytes, acknowledged only if records are reported missing",
    "missing records": _REBUILT + "Without another replica, put the files back from a backup, or accept the loss",
    "index": _BUILT_AGAIN,
    "index to rebuild": "none needed: the next start rebuilds it",
    "transaction index": "move the partition's folder away while the broker is down: it copies the replica",
    "producer snapshot": "none needed: the next start uses an older snapshot and the batches after it",
    "leader epochs": _BUILT_AGAIN,
    "offset checkpoint": "none needed: the next start ignores the file, recovers the logs and writes it again",
    "topic id": "copy the file from another replica of the partition",
    "identity": "write version, broker.id and cluster.id as in the other log directories of this broker",
    "storage": "repair the disk or the permissions of the file",
    "leftover": "none needed: the next start removes the file or finishes the change",
    "stray": "the broker does not use it: move it away",
}
"""Each rule with the remedy for what breaks it."""
_RULES: Final = {
    **dict.fromkeys(CHECKPOINTS, "offset checkpoint"),
    names.TXN_INDEX_SUFFIX: "transaction index",
    SNAPSHOT_SUFFIX: "producer snapshot",
    text_files.LEADER_EPOCH_CHECKPOINT: "leader epochs",
    text_files.PARTITION_METADATA: "topic id",
    text_files.META_PROPERTIES: "identity",
}
_BELOW_THE_END: Final = CHECKPOINTS.keys() - {text_files.CLEANER_CHECKPOINT}
_FILES_OF_A_DIRECTORY: Final = {
    *CHECKPOINTS,
    text_files.META_PROPERTIES,
    text_files.CLEAN_SHUTDOWN_MARKER,
    text_files.STOPPED_SEGMENTS,
    LOCK_FILE,
    BOOT_ID_FILE,
    SESSION_FILE,
}


class Verifier:
    """Checks one directory, in memory that does not depend on the size of the segments."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._ends: dict[str, int] = {}
        """Log end offset by folder, of the logs whose batches are all intact."""
        self._end = self._epoch = 0
        """Offset after the last batch so far, and the largest leader epoch."""

    def findings(self) -> Iterator[Row]:
        """Yield what breaks a rule; ``broken`` is false if a file is only out of place.

        Raises:
            OSError: the directory cannot be read.
        """
        folders = log_folders(self._files, self._directory)
        for folder in folders:
            try:
                yield from self._check_log(folder)
            except OSError as error:
                yield self._found(str(error.filename or folder), 0, "storage", error.strerror or str(error))
        if self._directory not in folders:
            yield from self._check_directory()

    def _found(self, path: str, position: int, rule: str, message: str, broken: bool = True) -> Row:
        file = path.removeprefix(f"{self._directory}/")
        found = {"file": file, "position": position, "rule": rule, "message": message}
        return found | {"advice": ADVICE[rule], "broken": broken}

    def _check_log(self, folder: str) -> Iterator[Row]:
        present = set()
        for name, kind in self._files.list_directory(folder):
            match = names.SEGMENT_FILE.fullmatch(name)
            if kind is not FileKind.FILE or not (match or names.OTHER_FILES.fullmatch(name)):
                yield self._found(join(folder, name), 0, "stray", "a log has no file of this name", broken=False)
            elif (match and match[3]) or name.endswith(".tmp"):
                yield self._found(join(folder, name), 0, "leftover", "a change was interrupted", broken=False)
            else:
                present.add(name)
        epochs = LeaderEpochCache(self._files, join(folder, text_files.LEADER_EPOCH_CHECKPOINT))
        with suppress(text_files.DamagedFileError):
            epochs.load()
        bases = sorted(int(name[:20]) for name in present if name.endswith(names.LOG_SUFFIX))
        self._end, self._epoch, intact = 0, -1, True
        for base, limit in pairwise([*bases, MAX_INT64]):
            self._end = max(self._end, base)
            for found in self._check_segment(folder, base, limit, epochs):
                intact &= found["rule"] != "batch"
                yield found
        future = parse_future_name(folder.rpartition("/")[2])
        if future is not None:
            # The entries of the checkpoints may be those of this copy; its folder is listed after that of the log.
            self._ends.pop(join(self._directory, directory_name(future)), None)
        elif intact:
            self._ends[folder] = self._end
        for name in sorted(present):
            if name == DAMAGE_FILE:
                for kind_of_damage, reason in read_known_damage(self._files, folder).items():
                    yield self._found(join(folder, name), 0, "missing records", f"{kind_of_damage}: {reason}")
            elif name[:20].isdigit() and "index" in name and int(name[:20]) not in bases:
                yield self._found(join(folder, name), 0, "leftover", "its segment does not exist", broken=False)
            else:
                yield from self._check_file(join(folder, name), name.lstrip("0123456789"))

    def _check_file(self, path: str, suffix: str) -> Iterator[Row]:
        """Check that a file other than segments and their indexes parses, and that transactions ascend."""
        if suffix in _RULES:
            before = -1
            for row in rows_of(self._files, path):
                if row["kind"] == UNREADABLE:
                    yield self._found(path, row["position"], _RULES[suffix], row["message"])
                elif suffix == names.TXN_INDEX_SUFFIX:
                    if not max(before + 1, row["first_offset"]) <= row["last_offset"]:
                        yield self._found(path, row["position"], _RULES[suffix], f"does not end above {before}")
                    before = row["last_offset"]

    def _check_segment(self, folder: str, base: int, limit: int, epochs: LeaderEpochCache) -> Iterator[Row]:
        path = join(folder, names.file_name(base, names.LOG_SUFFIX))
        indexes = []
        for suffix in (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX):
            index = join(folder, names.file_name(base, suffix))
            if self._files.exists(index):
                indexes.append((index, _Entries(rows_of(self._files, index))))
            elif self._files.size(path):
                yield self._found(index, 0, "index to rebuild", "the file is missing", broken=False)
        readable = True
        for row in rows_of(self._files, path, with_records=True):
            if row["kind"] == UNREADABLE:
                readable = False
                file, size = BatchFile(self._files, path), self._files.size(path)
                file.size = row["position"]
                interrupted = limit == MAX_INT64 and file.is_interrupted_append(size, self._end)
                rule = "interrupted append" if interrupted else "batch"
                yield self._found(path, row["position"], rule, row["message"])
                break
            for at, message in self._faults(row, limit, epochs):
                yield self._found(path, row["position"] + at, "batch", message)
            self._end, self._epoch = row["last_offset"] + 1, max(self._epoch, row["leader_epoch"])
            for _, entries in indexes:
                entries.compare(row)
        for index, entries in indexes:
            fault = entries.fault(readable)
            if fault is not None:
                yield self._found(index, *fault)

    def _faults(self, batch: Row, limit: int, epochs: LeaderEpochCache) -> Iterator[tuple[int, str]]:
        """Yield the byte in the batch, and the description, of each rule that the batch breaks."""
        first, last, epoch = batch["base_offset"], batch["last_offset"], batch["leader_epoch"]
        if first < self._end:
            yield 0, f"base offset {first} is below {self._end}, where the batch before ends"
        if last >= limit:
            yield 23, f"last offset {last} is not below {limit}, where the next segment begins"
        if 0 <= epoch < self._epoch:
            yield 12, f"leader epoch {epoch} is below {self._epoch}, that of an earlier batch"
        # A higher epoch than that of the file may not have been written before an unclean stop.
        elif 0 <= epoch <= (epochs.latest_epoch or 0) and epochs.epoch_of(first) not in (epoch, None):
            yield 12, f"leader epoch {epoch}, but leader-epoch-checkpoint has {epochs.epoch_of(first)}"
        if not batch["crc_valid"]:
            covered = f"{batch['position'] + CRC_START} to {batch['position'] + batch['size'] - 1}"
            yield 17, f"the checksum differs from that of bytes {covered}"
        elif "records" not in batch:
            yield HEADER_BYTES, batch["unreadable_records"]
        else:
            offsets = [first - 1, *(record["offset"] for record in batch["records"]), last + 1]
            if any(one >= other for one, other in pairwise(offsets)):
                yield HEADER_BYTES, f"the offsets of the records do not ascend from {first} to {last}"

    def _check_directory(self) -> Iterator[Row]:
        for name, kind in self._files.list_directory(self._directory):
            path = join(self._directory, name)
            if kind is FileKind.DIRECTORY and (parse_directory_name(name) is not None or is_future(name)):
                continue
            if kind is not FileKind.FILE or name.removesuffix(".tmp") not in _FILES_OF_A_DIRECTORY:
                message = "neither a log nor a file of a log directory; a log that was set aside or deleted may stay"
                yield self._found(path, 0, "stray", message, broken=False)
                continue
            yield from self._check_file(path, name)
            for row in rows_of(self._files, path):
                folder = join(self._directory, row.get("folder") or f"{row.get('topic')}-{row.get('partition')}")
                if "sizes" in row:
                    paths = {base: join(folder, names.file_name(base, names.LOG_SUFFIX)) for base in row["sizes"]}
                    sizes = {base: self._files.size(each) for base, each in paths.items() if self._files.exists(each)}
                    for text in missing_records(row["sizes"], sizes).values():
                        yield self._found(folder, 0, "missing records", text)
                elif row.get("offset", -1) > self._ends.get(folder, MAX_INT64) and name in _BELOW_THE_END:
                    message = f"{row['kind']} {row['offset']} is above {self._ends[folder]}, where the log ends"
                    yield self._found(path, row["position"], "missing records", message)


class _Entries:
    """The entries of an index; they are compared with the batches of the segment in one pass, up to the first fault."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self._row = next(rows, {})
        self._reason = ""

    def compare(self, batch: Row) -> None:
        """Check the entries that belong to a batch."""
        while not self._reason and "offset" in (row := self._row):
            if "timestamp" in row:
                is_reached, fits = row["offset"] <= batch["last_offset"], row["timestamp"] == batch["max_timestamp"]
            else:
                is_reached = row["batch_position"] <= batch["position"]
                fits = row["batch_position"] == batch["position"] and batch["last_offset"] <= row["offset"]
            if not is_reached:
                return
            if not fits:
                self._reason = f"the entry does not fit the batch at {batch['position']}"
                return
            self._row = next(self._rows, {})
            if any(row[name] >= value for name, value in self._row.items() if name in row and name != "kind"):
                self._reason = "the entry is not above the entry before"

    def fault(self, at_the_end: bool) -> tuple[int, str, str, bool] | None:
        """Return the position, rule, message and ``broken`` of the fault; ``at_the_end`` no entry may be left."""
        if not self._row or not (self._reason or at_the_end):
            return None
        kind, position = self._row["kind"], self._row["position"]
        if kind == "zeros":
            return position, "index to rebuild", "zeros follow, as an unclean stop of Kafka leaves them", False
        return position, "index", self._reason or self._row.get("message") or "the entry is beyond the last batch", True
