"""`configure` sets the session builder's options."""

import os
import sys

import pytest

from paceline.pipeline.session import SETTINGS, configure


class Builder:
    """The part of Spark's builder that is used; a real one would share its options with every other test."""

    def __init__(self, master: str | None) -> None:
        self._options = {} if master is None else {"spark.master": master}

    def config(self, key: str, value: str) -> "Builder":
        self._options[key] = value
        return self


@pytest.mark.parametrize(
    ("master", "before", "after"),
    [
        ("local[2]", None, sys.executable),
        ("local[*]", "/their/python", "/their/python"),
        ("spark://host:7077", None, None),
        (None, None, None),
    ],
)
def test_a_local_master_uses_this_interpreter_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, master: str | None, before: str | None, after: str | None
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", before or "")
    if before is None:
        monkeypatch.delenv("PYSPARK_PYTHON")
    configure(Builder(master))
    assert os.environ.get("PYSPARK_PYTHON") == after
    monkeypatch.setenv("PYSPARK_PYTHON", "")


def test_settings_made_later_win() -> None:
    builder = configure(Builder("spark://host:7077")).config("spark.python.worker.reuse", "false")
    assert builder._options["spark.python.worker.reuse"] == "false"
    assert builder._options.items() >= (SETTINGS | {"spark.python.worker.reuse": "false"}).items()
