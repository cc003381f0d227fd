"""Recordings of runs: they hold what happened, and recording changes nothing."""

from itertools import pairwise
from pathlib import Path

import pytest

from paceline.console.recording import ACKNOWLEDGED, EVENT, FAULT, READ, SAMPLE, VERDICT, Recording, read_recording
from tests.simulation.__main__ import main
from tests.simulation.run import run_seed

SEED = 7


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "seed.ndjson"
    assert main(["--seed", str(SEED), "--no-shrink", "--record", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def recording(recorded: Path) -> Recording:
    with recorded.open(encoding="utf-8") as lines:
        return read_recording(lines)


def test_a_recorded_run_is_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--seed", str(SEED), "--no-shrink", "--record", str(tmp_path / "seed.ndjson")])
    assert run_seed(SEED).digest in capsys.readouterr().out


def test_a_recording_has_every_kind_and_ends_with_the_verdict(recording: Recording) -> None:
    assert recording.cut is None
    assert {entry.kind for entry in recording.entries} == {EVENT, SAMPLE, ACKNOWLEDGED, READ, FAULT, VERDICT}
    assert recording.entries[-1].kind == VERDICT
    assert recording.header.made_by == f"make simulate SEED={SEED} RECORD=seed.ndjson"


def test_a_partition_is_sampled_twice_a_second_with_what_each_replica_has(recording: Recording) -> None:
    samples = [one for one in recording.entries if one.kind == SAMPLE and one.value["partition"] == 0]
    assert all(later.t - earlier.t <= 700 for earlier, later in pairwise(samples))
    replica = next(one for one in samples[-1].value["replicas"] if one["broker_id"] == samples[-1].value["leader"])
    assert replica["role"] == "leader"
    assert replica["log_start_offset"] <= replica["high_watermark"] <= replica["log_end_offset"]
    assert replica["leader_epochs"][-1][0] == samples[-1].value["leader_epoch"]


def test_control_requests_are_recorded_with_the_answer_of_the_broker(recording: Recording) -> None:
    requests = [one.value for one in recording.entries if one.value.get("kind") == "control-request"]
    assert {"LeaderAndIsr", "UpdateMetadata"} <= {one["request"] for one in requests}
    assert all("error" not in one or "known_controller_epoch" in one for one in requests)
    assert {one["controller_id"] for one in requests} <= {1_000_000, 1_000_001}
