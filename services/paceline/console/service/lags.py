"""Sample the lag of all groups for two hours."""

import threading
import time
from collections import deque
from typing import Any, Final

import grpc

from paceline.console.lag_drawing import WINDOW_MS
from paceline.model.errors import PacelineError
from paceline.operations.group_offsets import group_lag
from paceline_client import Admin
from paceline_client.errors import BootstrapError

EVERY_MS: Final = 30_000
_MOST_GROUPS: Final = 200
_MOST_ROWS: Final = 2_000
"""Partitions of a group whose lag the latest sample keeps."""
_JOIN_S: Final = 3.0


class Lags:
    """Samples until closed. Thread-safe."""

    def __init__(self, admin: Admin) -> None:
        """``admin`` stays the caller's."""
        self._admin = admin
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._series: dict[str, deque[tuple[int, int]]] = {}
        self._latest: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._run, name="console-lags", daemon=True)
        self.taken_ms: int | None = None
        """Unix time of the latest sample; None before the first."""
        self.left_out = 0
        """Groups that are not sampled, because there are more than 200."""

    def start(self) -> None:
        """Start to sample."""
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def series(self, group: str) -> list[tuple[int, int]]:
        """Return the lag of a group as (Unix time in ms, records), oldest first."""
        with self._lock:
            return list(self._series.get(group, ()))

    def totals(self) -> dict[str, int]:
        """Return the latest lag of each group."""
        with self._lock:
            return {group: samples[-1][1] for group, samples in self._series.items() if samples[-1][0] == self.taken_ms}

    def of_topic(self, topic: str) -> list[dict[str, Any]]:
        """Return the latest lag of each group and partition of a topic."""
        with self._lock:
            return [row for row in self._latest if row["topic"] == topic]

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.sample(int(time.time() * 1000))
            except (PacelineError, grpc.RpcError, ValueError):
                pass  # The chart has a gap, and the pages say why the cluster does not answer.
            self._over.wait(EVERY_MS / 1000)

    def sample(self, now_ms: int) -> None:
        """Take a sample.

        Raises:
            PacelineError: the cluster did not answer.
        """
        groups = self._admin.list_groups()
        self.left_out = max(len(groups) - _MOST_GROUPS, 0)
        latest: list[dict[str, Any]] = []
        totals: dict[str, int] = {}
        for one in groups[:_MOST_GROUPS]:
            if self._over.is_set():
                return
            try:
                _, rows = group_lag(self._admin, one.group_id)
            except BootstrapError:
                raise
            except PacelineError:
                continue  # Its coordinator moves, or it was deleted: the other groups have a sample.
            lags = [row["lag"] for row in rows if row["lag"] is not None]
            if lags:
                totals[one.group_id] = sum(lags)
            latest += [{"topic": row["partition"].rpartition("/")[0], **row} for row in rows[:_MOST_ROWS]]
        with self._lock:
            for group, lag in totals.items():
                self._series.setdefault(group, deque(maxlen=WINDOW_MS // EVERY_MS)).append((now_ms, lag))
            self._series = {
                group: samples for group, samples in self._series.items() if samples[-1][0] > now_ms - WINDOW_MS
            }
            self._latest, self.taken_ms = latest, now_ms
