"""A load on generated stubs with exact accounting: idempotent batches, retried until their result is known."""

import itertools
import threading
import time
from collections.abc import Sequence

from tests.support.stub_client import StubClient

BATCH = 10
GIVE_UP_S = 900.0
"""Much longer than any fault; a batch without a result after this time is a problem."""


class Writer:
    """Writes numbered records to one partition, one batch after another."""

    def __init__(self, bootstrap: Sequence[str], topic: str, partition: int, pause_s: float) -> None:
        self.topic, self.partition = topic, partition
        self.acked: dict[int, bytes] = {}
        """Value by offset."""
        self.sent = 0
        self.failure: Exception | None = None
        self.longest_gap_s = 0.0
        """Longest time between two acknowledgements."""
        self._pause_s = pause_s
        self._over = threading.Event()
        self._client = StubClient(bootstrap)
        self._thread = threading.Thread(target=self._run, name=f"writer-{partition}", daemon=True)

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the batch in progress, then stop."""
        self._over.set()
        self._thread.join(GIVE_UP_S + 60.0)
        assert not self._thread.is_alive(), f"the writer of partition {self.partition} does not end"
        self._client.close()

    def _run(self) -> None:
        try:
            producer_id, epoch = self._client.init_producer_id(GIVE_UP_S)
            last = time.monotonic()
            for number in itertools.count():
                if self._over.wait(self._pause_s):
                    return
                values = [b"%d/%d/%d" % (self.partition, number, index) for index in range(BATCH)]
                producer = (producer_id, epoch, self.sent)
                self.sent += BATCH
                base = self._client.produce(self.topic, self.partition, values, GIVE_UP_S, producer)
                self.acked.update(enumerate(values, base))
                self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - last)
                last = time.monotonic()
        except Exception as error:
            self.failure = error

    def problems(self, reader: StubClient) -> tuple[int, list[str]]:
        """Read all records; return their number and the differences from the acknowledged records."""
        found = []
        if self.failure is not None:
            found.append(f"partition {self.partition}: the writer failed: {self.failure}")
        end = max(self.acked, default=-1) + 1
        there = reader.read_all(self.topic, self.partition, end, 300.0)
        if self.failure is None and len(there) != self.sent:
            found.append(f"partition {self.partition}: {self.sent} records were written, {len(there)} are there")
        if len(set(there.values())) != len(there):
            found.append(f"partition {self.partition}: {len(there) - len(set(there.values()))} records are there twice")
        for offset, value in self.acked.items():
            if there.get(offset) != value:
                found.append(
                    f"partition {self.partition}: {value!r} acknowledged at {offset}, {there.get(offset)!r} is there"
                )
                break
        return len(there), found
