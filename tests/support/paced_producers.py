"""Idempotent producers that send one record after the other, and the check that the log has each record once."""

import threading
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from paceline.model.identifiers import TopicPartition
from paceline.model.tls import TlsFiles
from paceline_client import Consumer, Producer
from tests.support.waiting import eventually

PAUSE_S = 0.005
_SETTLED_WITHIN_S = 180.0


class PacedProducers:
    """Threads that each send a record, with a value of its own, every 5 ms until the end of the block.

    With ``linger_ms=0`` every record is a batch, so that up to five batches of each producer are in flight.
    """

    def __init__(
        self, bootstrap: Sequence[str] | str, topic: str, partitions: int, count: int = 4, tls: TlsFiles | None = None
    ) -> None:
        self._bootstrap = bootstrap
        self._partitions = [TopicPartition(topic, partition) for partition in range(partitions)]
        self._tls = tls
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(count)]
        self.sent: list[bytes] = []
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        """(partition, offset) by value."""
        self.failed: dict[bytes, str] = {}

    def __enter__(self) -> "PacedProducers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(_SETTLED_WITHIN_S)
            assert not thread.is_alive(), "a producer did not settle its sends"

    def await_progress(self, records: int) -> None:
        """Wait until this many more records are acknowledged."""
        goal = len(self.acknowledged) + records
        eventually(lambda: self.failed or len(self.acknowledged) >= goal, 120.0, "records are acknowledged")
        assert self.failed == {}

    def check(self) -> None:
        """Check, after the block, that every send succeeded and that the log has every record once, at its offset."""
        assert self.failed == {}
        assert len(self.acknowledged) == len(self.sent)
        there: list[tuple[bytes, tuple[int, int]]] = []
        with Consumer(self._bootstrap, tls=self._tls) as consumer:
            consumer.assign(self._partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(self._partitions)
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                for tp, records in consumer.poll(timeout_ms=1_000).items():
                    there += [(record.value or b"", (tp.partition, record.offset)) for record in records]
        doubled = [value for value, count in Counter(value for value, _ in there).items() if count > 1]
        assert doubled == []
        assert dict(there) == self.acknowledged

    def _run(self, number: int) -> None:
        with Producer(self._bootstrap, linger_ms=0, tls=self._tls) as producer:
            count = 0
            while not self._over.wait(PAUSE_S):
                tp, value = self._partitions[count % len(self._partitions)], b"%d-%d" % (number, count)
                count += 1
                self.sent.append(value)
                try:
                    producer.send(
                        tp.topic,
                        value,
                        partition=tp.partition,
                        on_delivery=lambda at, error, value=value: self._done(value, at, error),
                    )
                except Exception as error:
                    self.failed[value] = f"{type(error).__name__}: {error}"

    def _done(self, value: bytes, at: object, error: Exception | None) -> None:
        if error is not None:
            self.failed[value] = f"{type(error).__name__}: {error}"
        else:
            self.acknowledged[value] = (at.partition, at.offset)  # type: ignore[attr-defined]
