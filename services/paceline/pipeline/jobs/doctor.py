"""Check that executors can run the jobs by importing modules inside tasks; an import on the driver proves nothing."""

import platform
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from paceline.pipeline.jobs.run import ExitCode, JobListener, JobResult, SilentListener

MODULES: Final = ("paceline", "pyspark_paceline", "grpc", "numpy", "pyarrow", "google_crc32c", "cramjam", "aiokafka")


def run(spark: Any, config: Mapping[str, Any] | None = None, listener: JobListener | None = None) -> JobResult:
    """Import every module in tasks; a missing module is a negative result that names host, interpreter and module."""
    listener = listener or SilentListener()
    tasks = int((config or {}).get("tasks", 4))
    driver = f"Python {platform.python_version()}"
    try:
        found = spark.range(0, tasks, 1, tasks).mapInArrow(check_imports, "host string, problem string").collect()
    except Exception as error:
        # Without the package paceline a worker cannot even load this check.
        missing = [line.strip() for line in str(error).splitlines() if "ModuleNotFoundError" in line]
        if not missing:
            raise
        listener.step("problem", {"problem": missing[-1]})
        return JobResult(ExitCode.NEGATIVE_VERDICT, {"driver": driver, "workers": [], "problems": missing[-1:]})
    problems = sorted({(row.host, row.problem) for row in found if row.problem})
    for host, problem in problems:
        listener.step("problem", {"host": host, "problem": problem})
    summary = {
        "driver": driver,
        "workers": sorted({row.host for row in found}),
        "problems": [f"{host}: {problem}" for host, problem in problems],
    }
    return JobResult(ExitCode.NEGATIVE_VERDICT if problems else ExitCode.OK, summary)


def check_imports(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield this worker's host, with an error message for every module that it cannot import."""
    for _ in batches:
        where = f"{platform.node()} Python {platform.python_version()} {sys.executable}"
        problems: list[str | None] = [problem for module in MODULES if (problem := import_problem(module))]
        rows: list[dict[str, str | None]] = [{"host": where, "problem": problem} for problem in problems] or [
            {"host": where, "problem": None}
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=pa.schema([("host", pa.string()), ("problem", pa.string())]))


def import_problem(module: str) -> str | None:
    """Return the error of importing a module, None when the import succeeds."""
    import importlib

    try:
        importlib.import_module(module)
    except Exception as error:
        return f"cannot import {module}: {type(error).__name__}: {error}"
    return None
