"""The Spark session of a job: local, on a cluster's master, over Spark Connect, or the one that spark-submit set up."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paceline.model.errors import InvalidConfigError
from paceline.pipeline.session import SETTINGS, configure, register


@contextmanager
def open_session(
    name: str, master: str | None = None, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Any]:
    """Give a session and stop it afterwards.

    Args:
        name: the application's name.
        master: a Spark master; None takes that of spark-submit, else ``local[*]``.
        remote: a Spark Connect server, ``sc://host:port``; excludes ``master``.
        settings: further Spark settings; they beat ours.

    Raises:
        InvalidConfigError: both are given, or PySpark is not installed.
    """
    if master and remote:
        raise InvalidConfigError("--master and --remote exclude each other")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InvalidConfigError("the pipeline needs PySpark: pip install 'paceline[pipeline]'") from error
    if remote:
        if remote.startswith("local"):
            # A server that PySpark starts on this machine, with this interpreter's packages.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.remote(remote)
        # A server's static settings are its own; only the session's can be set from here.
        for key, value in {
            **{k: v for k, v in SETTINGS.items() if k.startswith("spark.sql.")},
            **(settings or {}),
        }.items():
            builder = builder.config(key, value)
    else:
        builder = configure(SparkSession.builder.appName(name).master(master or _submitted_master() or "local[*]"))
        defaults = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
        for key, value in {**defaults, **(settings or {})}.items():
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not remote and session.conf.get("spark.submit.pyFiles", ""):
        # Tasks do not find a data source that Spark discovered in Python files shipped with the job.
        register(session)
    try:
        yield session
    finally:
        session.stop()


def _submitted_master() -> str | None:
    """Return the master that spark-submit was given; it hands settings to the JVM it starts Python from."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf

    master = SparkConf().get("spark.master", None)
    return str(master) if master else None
