"""A producer in the background that remembers what was acknowledged, and the check that all of it is there."""

import itertools
import threading
from collections.abc import Sequence
from types import TracebackType

from tests.support.stub_client import StubClient, StubClientError


class VerifiedLoad:
    """Writes to all partitions of a topic in turn, acks from every in-sync replica, until `stop`.

    Use as a context manager: the thread ends with the block. Every record's value is unique.
    """

    def __init__(self, bootstrap: Sequence[str], topic: str, partitions: int, batch: int = 20) -> None:
        self.topic = topic
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(partitions)]
        """Per partition: value by offset."""
        self.unknown_records = 0
        """At most so many records may be in the log that nobody acknowledged."""
        self.failure: Exception | None = None
        self._batch = batch
        self._stopping = threading.Event()
        self._client = StubClient(bootstrap, give_up=self._stopping.is_set)
        self._thread = threading.Thread(target=self._run, name=f"load-{topic}", daemon=True)

    def __enter__(self) -> "VerifiedLoad":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def count(self, partition: int | None = None) -> int:
        """Return how many records were acknowledged, in one partition or in all."""
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
        """Read everything back and return what is not as acknowledged, one line each; call after `stop`."""
        found = []
        extra = 0
        for partition, acknowledged in enumerate(self.acknowledged):
            end = max(acknowledged, default=-1) + 1
            there = reader.read_all(self.topic, partition, end, timeout_s)
            lost = [offset for offset in acknowledged if offset not in there]
            changed = [offset for offset, value in acknowledged.items() if offset in there and there[offset] != value]
            if lost:
                found.append(f"partition {partition}: {len(lost)} acknowledged records are gone, first {min(lost)}")
            if changed:
                found.append(f"partition {partition}: {len(changed)} offsets hold another record, first {min(changed)}")
            extra += len(there) - len(acknowledged)
        if extra > self.unknown_records:
            found.append(f"{extra} records nobody acknowledged, at most {self.unknown_records} can come from retries")
        return found

    def _run(self) -> None:
        numbers = itertools.count()
        for partition in itertools.cycle(range(len(self.acknowledged))):
            if self._stopping.is_set():
                return
            values = [b"%d-%d" % (partition, next(numbers)) for _ in range(self._batch)]
            try:
                base = self._client.produce(self.topic, partition, values)
            except StubClientError as failure:
                if not self._stopping.is_set():
                    self.failure = failure
                return
            except Exception as failure:
                self.failure = failure
                return
            finally:
                self.unknown_records = self._client.unknown_outcomes * self._batch
            self.acknowledged[partition].update(enumerate(values, base))
