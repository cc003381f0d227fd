"""Record the run for `paceline console --replay`: events, offsets of every replica, acknowledgements and the faults."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from paceline.console.recording import ACKNOWLEDGED, FAULT, SAMPLE_MS, Entry, Header, RecordingWriter
from paceline.console.service.collector import Collector
from paceline.model.identifiers import TopicPartition
from paceline_client import Admin

RECORDING: Final = "run.ndjson"
_ROUND_MS: Final = SAMPLE_MS - 100


class RunRecorder:
    """Records while it is used as a context. Acknowledgements are those of a producer with acks=all."""

    def __init__(
        self,
        path: Path,
        title: str,
        bootstrap: str,
        topic: str,
        partitions: int,
        acked: Callable[[], Mapping[int, int]],
    ) -> None:
        """``acked`` returns the exclusive end of the acknowledged records by partition; it is called twice a second."""
        self._began_ms, self._began_s = int(time.time() * 1000), time.monotonic()
        self._topic = topic
        self._acked = acked
        self._noticed_t, self._noticed = 0, dict[int, int]()
        self._file = path.open("w", encoding="utf-8")
        header = Header(title=title, origin="cluster", began_ms=self._began_ms, made_by="make run")
        self._writer = RecordingWriter(self._file.write, header)
        sampled = [TopicPartition(topic, index) for index in range(partitions)]
        self._faults: list[Entry] = []
        self._collector = Collector(lambda: Admin(bootstrap), self._add, lambda: sampled, self._began_ms)

    def __enter__(self) -> Self:
        self._collector.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._collector.close()
        self._writer.end()
        self._file.close()

    def t_of(self, at_s: float) -> int:
        """Return a time of the monotonic clock as a time of the recording."""
        return round((at_s - self._began_s) * 1000)

    def fault(self, text: str) -> None:
        """Record what the story does to the cluster; may be called from any thread."""
        self._faults.append(Entry(int(time.time() * 1000) - self._began_ms, FAULT, {"who": "story:", "what": text}))

    def _add(self, entry: Entry) -> None:
        """Write an entry, and before it the faults and acknowledgements since the last; called by one thread at a time.

        Acknowledgements wait for the next round of samples: beside samples that were taken before them they would look
        like lost records.
        """
        while self._faults:
            self._writer.add(self._faults.pop(0))
        if entry.t - self._noticed_t >= _ROUND_MS:
            for partition, end in self._noticed.items():
                value = {"topic": self._topic, "partition": partition, "end": end, "acks": "all"}
                self._writer.add(Entry(entry.t, ACKNOWLEDGED, value))
            self._noticed_t, self._noticed = entry.t, dict(self._acked())
        self._writer.add(entry)
