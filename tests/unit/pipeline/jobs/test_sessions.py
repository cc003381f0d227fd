"""Where the session of a job runs, and what a job prints below spark-submit."""

from typing import Any

import pyspark.sql
import pytest

from paceline.cli.pipeline import ConsoleListener
from paceline.pipeline.jobs.sessions import open_session

GATEWAY = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets it for the Python process that it starts."""


class Builder:
    """Stands in for Spark's builder and for the session that it makes."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.conf = self.settings
        self.registered: list[Any] = []
        self.dataSource = self

    def config(self, key: str, value: str) -> "Builder":
        self.settings[key] = value
        return self

    def appName(self, name: str) -> "Builder":  # noqa: N802
        return self.config("spark.app.name", name)

    def master(self, master: str) -> "Builder":
        return self.config("spark.master", master)

    def getOrCreate(self) -> "Builder":  # noqa: N802
        return self

    def register(self, source: Any) -> None:
        self.registered.append(source)

    def stop(self) -> None: ...


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    monkeypatch.setattr(pyspark.sql.SparkSession, "builder", made)
    monkeypatch.setenv("PYSPARK_PYTHON", "/a/python")
    return made


@pytest.mark.parametrize(
    ("given", "is_submitted", "expected"),
    [(None, False, "local[*]"), ("local[2]", False, "local[2]"), (None, True, None), ("local[2]", True, "local[2]")],
)
def test_a_job_of_spark_submit_keeps_its_master_unless_another_one_is_given(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, given: str | None, is_submitted: bool, expected: str | None
) -> None:
    monkeypatch.delenv(GATEWAY, raising=False)
    if is_submitted:
        monkeypatch.setenv(GATEWAY, "1")
    with open_session("job", given):
        assert builder.settings.get("spark.master") == expected


@pytest.mark.parametrize("files", ["", "/tmp/paceline.zip"])
def test_the_data_source_is_registered_when_python_files_are_shipped(builder: Builder, files: str) -> None:
    with open_session("job", "local[1]", settings={"spark.submit.pyFiles": files}):
        assert len(builder.registered) == bool(files)


@pytest.mark.parametrize(
    ("output", "is_submitted", "is_shown"), [("json", False, True), ("table", True, True), ("json", True, False)]
)
def test_steps_are_left_out_where_spark_submit_would_mix_them_into_the_summary(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: str,
    is_submitted: bool,
    is_shown: bool,
) -> None:
    monkeypatch.delenv(GATEWAY, raising=False)
    if is_submitted:
        monkeypatch.setenv(GATEWAY, "1")
    with ConsoleListener(output) as listener:
        listener.step("planned", {"records": 3})
    assert capsys.readouterr().err == ("planned records=3\n" if is_shown else "")
