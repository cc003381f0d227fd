"""The recording of a run: acknowledgements are never ahead of the samples beside them."""

from pathlib import Path

from examples.flights.recorder import RECORDING, RunRecorder
from paceline.console.recording import ACKNOWLEDGED, FAULT, SAMPLE, Entry, read_recording


def test_acknowledgements_wait_for_the_round_of_samples_after_them(tmp_path: Path) -> None:
    acked = {0: 5}
    recorder = RunRecorder(tmp_path / RECORDING, "a run", "127.0.0.1:1", "flights", 1, lambda: acked)
    for t, end in ((500, 5), (510, 9), (1_000, 12)):
        recorder._add(Entry(t, SAMPLE, {"topic": "flights", "partition": 0, "log_end": end}))
        acked[0] = end
    recorder.fault("a leader is killed")
    recorder._add(Entry(1_500, SAMPLE, {"topic": "flights", "partition": 0}))
    recorder.__exit__(None, None, None)
    with (tmp_path / RECORDING).open(encoding="utf-8") as lines:
        recording = read_recording(lines)
    assert recording.cut is None
    assert [(one.t, one.value["end"]) for one in recording.entries if one.kind == ACKNOWLEDGED] == [
        (1_000, 5),
        (1_500, 9),
    ]
    assert [one.value["what"] for one in recording.entries if one.kind == FAULT] == ["a leader is killed"]
