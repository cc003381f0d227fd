"""A background producer that records acknowledgements, and the check that the log has exactly these records."""

import itertools
import threading
from collections.abc import Sequence
from types import TracebackType

from paceline.model.tls import TlsFiles
from tests.support.stub_client import StubClient, StubClientError


class VerifiedLoad:
    """Writes to all partitions of a topic in turn, acks from every in-sync replica, until `stop`.

    Use as a context manager: the thread ends with the block. Every record's value is unique. With ``idempotent`` a
    record that is there twice is a problem; without, repeated calls may have doubled records.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        topic: str,
        partitions: int,
        batch: int = 20,
        tls: TlsFiles | None = None,
        idempotent: bool = False,
        call_timeout_s: float = 20.0,
    ) -> None:
        self.topic = topic
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(partitions)]
        """Value by offset, for each partition."""
        self.unknown_records = 0
        """Maximum number of unacknowledged records in the log."""
        self.failure: Exception | None = None
        self._batch = batch
        self._stopping = threading.Event()
        self._idempotent = idempotent
        self._client = StubClient(bootstrap, give_up=self._stopping.is_set, tls=tls, call_timeout_s=call_timeout_s)
        self._thread = threading.Thread(target=self._run, name=f"load-{topic}", daemon=True)

    def __enter__(self) -> "VerifiedLoad":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def count(self, partition: int | None = None) -> int:
        """Return the number of acknowledged records, in one partition or in all."""
        if partition is not None:
            return len(self.acknowledged[partition])
        return sum(len(offsets) for offsets in self.acknowledged)

    def stop(self, timeout_s: float = 120.0) -> None:
        """End the thread; a batch in flight is finished or given up.

        Raises:
            AssertionError: it did not end in time, or it failed.
        """
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"the load on {self.topic} did not stop within {timeout_s:g} s"
        self._client.close()
        if self.failure is not None:
            raise AssertionError(f"the load on {self.topic} failed: {self.failure}") from self.failure

    def problems(self, reader: StubClient, timeout_s: float = 180.0) -> list[str]:
        """Read all partitions and return the differences from the acknowledged records, one line each; call after
        `stop`.
        """
        found = []
        extra = 0
        for partition, acknowledged in enumerate(self.acknowledged):
            end = max(acknowledged, default=-1) + 1
            there = reader.read_all(self.topic, partition, end, timeout_s)
            lost = [offset for offset in acknowledged if offset not in there]
            changed = [offset for offset, value in acknowledged.items() if offset in there and there[offset] != value]
            if lost:
                found.append(f"partition {partition}: {len(lost)} acknowledged records are lost, first {min(lost)}")
            if changed:
                found.append(f"partition {partition}: {len(changed)} offsets hold another record, first {min(changed)}")
            extra += len(there) - len(acknowledged)
            doubled = len(there) - len(set(there.values()))
            if self._idempotent and doubled:
                found.append(f"partition {partition}: {doubled} records are there twice")
            numbers = [int(there[offset].rpartition(b"-")[2]) for offset in sorted(there)]
            if self._idempotent and numbers != sorted(numbers):
                found.append(f"partition {partition}: records are not in the order in which they were sent")
        # Every retry may have duplicated a batch; an idempotent load has at most one batch in doubt at its end.
        allowed = self._batch if self._idempotent else self.unknown_records
        if extra > allowed:
            found.append(f"{extra} unacknowledged records, at most {allowed} can come from retries")
        return found

    def _run(self) -> None:
        numbers = itertools.count()
        sequences = [0] * len(self.acknowledged)
        try:
            producer = self._client.init_producer_id() if self._idempotent else None
        except StubClientError as failure:
            self.failure = failure
            return
        for partition in itertools.cycle(range(len(self.acknowledged))):
            if self._stopping.is_set():
                return
            values = [b"%d-%d" % (partition, next(numbers)) for _ in range(self._batch)]
            try:
                stamp = None if producer is None else (*producer, sequences[partition])
                base = self._client.produce(self.topic, partition, values, producer=stamp)
            except StubClientError as failure:
                if not self._stopping.is_set():
                    self.failure = failure
                return
            except Exception as failure:
                self.failure = failure
                return
            finally:
                self.unknown_records = self._client.unknown_outcomes * self._batch
            sequences[partition] += len(values)
            self.acknowledged[partition].update(enumerate(values, base))
