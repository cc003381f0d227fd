"""A substitute for a Spark session where only ``range().mapInArrow().collect()`` is needed: runs tasks sequentially.

The mapped function is pickled first, as on its way to a Spark worker.
"""

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa


class InlineSpark:
    """A session whose tasks run in the caller's thread."""

    sparkContext = SimpleNamespace(defaultParallelism=2)  # noqa: N815

    def range(self, start: int, end: int, step: int, partitions: int) -> "_Numbers":
        assert (end - start) // step == partitions
        return _Numbers(list(range(start, end, step)))


class _Numbers:
    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers

    def mapInArrow(self, function: Callable[..., Any], schema: str) -> "_Mapped":  # noqa: N802
        return _Mapped(self._numbers, pickle.loads(pickle.dumps(function)))


class _Mapped:
    def __init__(self, numbers: list[int], function: Callable[..., Any]) -> None:
        self._numbers, self._function = numbers, function

    def collect(self) -> list[Any]:
        rows = []
        for number in self._numbers:
            for batch in self._function(iter([pa.RecordBatch.from_pydict({"id": [number]})])):
                rows.extend(SimpleNamespace(**row) for row in batch.to_pylist())
        return rows
