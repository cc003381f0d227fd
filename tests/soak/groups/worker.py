"""A process with some members of the group; it notes each of their steps in a file, so that it may be killed.

Lines: ``J member time`` joins, ``A member time generation partitions`` assigned, ``P member time partition first next``
processed, ``C member time partition offset`` commit acknowledged. Times are seconds of the monotonic clock, which all
processes share. Every line is written before the step that follows it.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from paceline.model.errors import PacelineError
from paceline_client import Consumer, OffsetAndMetadata, RebalanceListener, TopicPartition
from tests.soak.groups.account import COMMIT_S, GROUP, HEARTBEAT_MS, SESSION_MS, TOPIC


class Notes(RebalanceListener):
    """Writes the steps of one member."""

    def __init__(self, descriptor: int, member: str) -> None:
        self._descriptor = descriptor
        self._member = member
        self.positions: dict[TopicPartition, OffsetAndMetadata] = {}
        """Positions after the records that were processed in this generation."""
        self.consumer: Consumer | None = None

    def write(self, kind: str, *fields: object) -> None:
        """Write a line with a single write."""
        text = " ".join(map(str, (kind, self._member, f"{time.monotonic():.4f}", *fields)))
        os.write(self._descriptor, text.encode() + b"\n")

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Write the partitions of a generation."""
        self.positions.clear()
        group = None if self.consumer is None else self.consumer._group
        assert group is not None
        self.write("A", group.generation, ",".join(str(one.partition) for one in partitions) or "-")


class Member(threading.Thread):
    """A consumer that polls, writes its steps, and commits until it is stopped."""

    def __init__(self, bootstrap: str, descriptor: int, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._notes = Notes(descriptor, name)
        self._over = threading.Event()
        self._consumer = Consumer(
            bootstrap,
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            enable_auto_commit=False,
            client_id=name,
        )
        self._notes.consumer = self._consumer

    def run(self) -> None:
        self._notes.write("J")
        self._consumer.subscribe([TOPIC], listener=self._notes)
        next_commit = 0.0
        while not self._over.is_set():
            for partition, records in self._consumer.poll(500).items():
                if records:
                    first, last = records[0].offset, records[-1].offset
                    self._notes.write("P", partition.partition, first, last + 1)
                    self._notes.positions[partition] = OffsetAndMetadata(last + 1)
            if time.monotonic() >= next_commit:
                self._commit()
                next_commit = time.monotonic() + COMMIT_S
        self._commit()
        self._consumer.close()
        self._notes.write("L")

    def _commit(self) -> None:
        offsets = dict(self._notes.positions)
        if not offsets:
            return
        try:
            self._consumer.commit(offsets)
        except PacelineError:
            return  # Another member continues from the last commit.
        for one, position in offsets.items():
            self._notes.write("C", one.partition, position.offset)

    def stop(self) -> None:
        """End after the poll in progress."""
        self._over.set()


def main() -> None:
    """Run members until stdin ends."""
    bootstrap, path, name, count = sys.argv[1:]
    descriptor = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    members = [Member(bootstrap, descriptor, f"{name}-{number}") for number in range(int(count))]
    for member in members:
        member.start()
    sys.stdin.read()
    for member in members:
        member.stop()
    for member in members:
        member.join(60)


if __name__ == "__main__":
    main()
