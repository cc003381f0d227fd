"""Settings of a Spark session for the Paceline data source, each with its reason."""

import os
import sys
from typing import Any, Final

SETTINGS: Final = {
    # Reduces the cost of a Python task from 28 to 11 ms.
    "spark.python.unix.domain.socket.enabled": "true",
    # With this setting and Unix sockets together, every job failed in Spark 4.3.0.
    "spark.python.udf.pipelined.enabled": "false",
    # A new worker costs 147 ms per task.
    "spark.python.worker.reuse": "true",
    # Needed by the option pushdown=true; no effect without it.
    "spark.sql.python.filterPushdown.enabled": "true",
}


def configure(builder: Any) -> Any:
    """Return the ``SparkSession.builder`` with `SETTINGS`; later settings override them.

    With a local master set before this call, Spark's Python workers use this interpreter unless ``PYSPARK_PYTHON`` is
    set: Spark would otherwise use ``python3`` from the path, which may not find the data source.

    Spark starts its JVM with fork and exec. If a Paceline client was used in this process before, gRPC's fork handlers
    can break that child process. This call disables the handlers, with effect only if gRPC is first imported after it.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    master = str(getattr(builder, "_options", {}).get("spark.master", ""))
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    return builder


def register(spark: Any) -> None:
    """Register the data source manually: needed with ``--py-files``, where Spark's discovery fails on executors.

    Do not call it with a Python environment shipped as an archive: there discovery works, and ``register`` fails
    because the driver would plan with the interpreter of the archive.
    """
    from paceline.pipeline.data_source import PacelineDataSource

    spark.dataSource.register(PacelineDataSource)
