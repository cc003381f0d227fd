"""Settings of a Spark session that suit the Paceline data source; the reason stands beside each."""

import os
import sys
from typing import Any, Final

SETTINGS: Final = {
    # The cost of a Python task falls from 28 to 11 ms.
    "spark.python.unix.domain.socket.enabled": "true",
    # Together with Unix sockets every run of Spark 4.3.0 failed.
    "spark.python.udf.pipelined.enabled": "false",
    # A fresh worker costs 147 ms a task.
    "spark.python.worker.reuse": "true",
    # Needed by the option pushdown=true; harmless without it.
    "spark.sql.python.filterPushdown.enabled": "true",
}


def configure(builder: Any) -> Any:
    """Return the ``SparkSession.builder`` with `SETTINGS`; settings made after it win.

    With a local master, named before this call, Spark's Python workers are those of this interpreter unless
    ``PYSPARK_PYTHON`` says otherwise: Spark would take ``python3`` from the path and not find the data source there.

    Spark starts its JVM with fork and exec. gRPC's handlers around fork, where a client has been used in this process
    before, can break that child; they are switched off, which takes effect when gRPC is first imported after this call.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    master = str(getattr(builder, "_options", {}).get("spark.master", ""))
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    return builder


def register(spark: Any) -> None:
    """Register the data source by hand: needed with ``--py-files``, where Spark's discovery fails on executors.

    Do not call it with a Python environment shipped as an archive: there discovery works, and ``register`` fails
    because the driver would plan with the interpreter of the archive.
    """
    from paceline.pipeline.data_source import PacelineDataSource

    spark.dataSource.register(PacelineDataSource)
