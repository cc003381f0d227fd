"""A member of a consumer group for the driver of the Python client."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.tls import TlsFiles
from paceline_client import Consumer, OffsetAndMetadata, RebalanceListener

Message = dict[str, Any]
Job = Callable[[], Message]

POLL_MS: Final = 50
JOB_TIMEOUT_S: Final = 90.0


class PythonMember(RebalanceListener):
    """A consumer polled by its own thread; commands run on that thread, between two polls."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        tls: TlsFiles | None,
        command: Message,
        fields_of: Callable[[PacelineError], Message],
    ) -> None:
        self._fields_of = fields_of
        self._consumer = Consumer(
            bootstrap,
            group_id=command["group_id"],
            group_instance_id=command.get("group_instance_id", ""),
            partition_assignment_strategy=command.get("assignors", ["range"]),
            session_timeout_ms=command.get("session_timeout_ms", 30_000),
            heartbeat_interval_ms=command.get("heartbeat_interval_ms", 100),
            max_poll_interval_ms=command.get("max_poll_interval_ms", 60_000),
            enable_auto_commit=command.get("auto_commit", False),
            auto_commit_interval_ms=command.get("auto_commit_interval_ms", 5_000),
            auto_offset_reset=command.get("reset", "earliest"),
            tls=tls,
        )
        self._topics: list[str] = command["topics"]
        self._jobs: queue.Queue[tuple[Job, Future[Message]]] = queue.Queue()
        self._read: dict[str, list[str]] = {}
        self._events: list[tuple[str, dict[str, list[int]]]] = []
        self._error: PacelineError | None = None
        self._polling, self._closed = True, False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # Commands

    def state(self) -> Message:
        """Return the member's partitions, the records it has read, and its callbacks so far."""
        return self._do(self._state)

    def commit(self, offsets: list[Message] | None) -> Message:
        """Commit these offsets, or the positions after all records read so far."""

        def job() -> Message:
            self._consumer.commit(None if offsets is None else committable(offsets))
            return {}

        return self._do(job)

    def committed(self, partitions: dict[str, list[int]]) -> Message:
        """Return committed offsets."""

        def job() -> Message:
            wanted = [TopicPartition(topic, index) for topic, indexes in partitions.items() for index in indexes]
            found = self._consumer.committed(wanted)
            return {"offsets": [committed_fields(one, found[one]) for one in sorted(wanted)]}

        return self._do(job)

    def pause(self) -> Message:
        """Stop polling."""
        return self._do(lambda: self._set_polling(False))

    def resume(self) -> Message:
        """Continue polling."""
        return self._do(lambda: self._set_polling(True))

    def close(self) -> Message:
        """Close the consumer and end its thread."""

        def job() -> Message:
            self._closed = True
            self._consumer.close()
            return {}

        return self._do(job)

    # Callbacks

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Record the callback."""
        self._note("revoked", partitions)

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Record the callback."""
        self._note("assigned", partitions)

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Record the callback."""
        self._note("lost", partitions)

    # On the thread

    def _run(self) -> None:
        try:
            self._consumer.subscribe(self._topics, listener=self)
        except PacelineError as error:
            self._error, self._polling = error, False
        while not self._closed:
            try:
                job, future = self._jobs.get(block=not self._polling)
            except queue.Empty:
                self._poll()
                continue
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

    def _poll(self) -> None:
        try:
            polled = self._consumer.poll(POLL_MS)
        except PacelineError as error:
            self._error, self._polling = error, False
            return
        for (topic, index), records in polled.items():
            self._read.setdefault(f"{topic}/{index}", []).extend(str(one.offset) for one in records)

    def _do(self, job: Job) -> Message:
        future: Future[Message] = Future()
        self._jobs.put((job, future))
        return future.result(JOB_TIMEOUT_S)

    def _set_polling(self, polling: bool) -> Message:
        self._polling = polling
        return {}

    def _state(self) -> Message:
        owned = self._consumer.assignment()
        positions = {}
        for one in owned:
            try:
                positions[f"{one.topic}/{one.partition}"] = str(self._consumer.position(one, timeout_ms=0))
            except PacelineError as error:
                if not error.retriable and self._error is None:
                    self._error, self._polling = error, False
        return {
            "member_id": self._consumer.member_id,
            "generation": self._consumer.generation,
            "assignment": by_topic(owned),
            "positions": positions,
            "read": self._read,
            "events": self._events,
            "error": None if self._error is None else self._fields_of(self._error),
        }

    def _note(self, kind: str, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            self._events.append((kind, by_topic(partitions)))


def by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    """Return the indexes of partitions, sorted, by topic."""
    found: dict[str, list[int]] = {}
    for one in sorted(partitions):
        found.setdefault(one.topic, []).append(one.partition)
    return found


def committable(offsets: Sequence[Message]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return a command's offsets in the client's form."""
    return {
        TopicPartition(one["topic"], one["partition"]): OffsetAndMetadata(
            int(one["offset"]), one.get("metadata", ""), one.get("leader_epoch")
        )
        for one in offsets
    }


def committed_fields(partition: TopicPartition, value: OffsetAndMetadata | None) -> Message:
    """Return a committed offset as an object; its offset is null when none is committed."""
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": None if value is None else str(value.offset),
        "metadata": "" if value is None else value.metadata,
        "leader_epoch": None if value is None else value.leader_epoch,
    }
