"""Slow disks: logs change while they are being flushed."""

from dataclasses import replace
from typing import Any

import pytest

from paceline.log.durability import Durability
from tests.simulation.profile import draw_profile
from tests.simulation.run import Run
from tests.simulation.world import World


def test_no_record_is_lost_by_appends_truncations_and_crashes_during_flushes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meetings = {"appended": 0, "made durable beside it": 0, "cut": 0}
    finish, sync_meanwhile = Durability.finish, Durability.sync_meanwhile

    def finished(self: Durability, task: Any, now_ms: int | None) -> None:
        meetings["cut"] += task.generation != self.generation
        meetings["appended"] += self._epochs.version != task.epochs_version
        finish(self, task, now_ms)

    def synced(self: Durability, segments: Any) -> None:
        meetings["made durable beside it"] += 1
        sync_meanwhile(self, segments)

    monkeypatch.setattr(Durability, "finish", finished)
    monkeypatch.setattr(Durability, "sync_meanwhile", synced)
    for seed in (1, 2, 5, 8, 12, 13):
        profile = replace(
            draw_profile(World(seed)),
            brokers=3,
            replication_factor=3,
            min_insync_replicas=2,
            slow_disks=8,
            flush_messages=3,
            segment_bytes=1_000,
            checkpoint_interval_ms=500,
            fault_kinds=("kill-leader", "crash-broker", "power-loss"),
            fault_count=10,
            fault_ms=15_000,
        )
        assert Run(seed, profile=profile).run().failures == {}, seed
    assert all(meetings.values()), meetings
