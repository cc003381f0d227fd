"""The Spark session of a job: local, with a Spark master, over Spark Connect, or set up by spark-submit."""

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
    """Yield a session and stop it at the end.

    Args:
        name: the application's name.
        master: a Spark master; None uses that of spark-submit, otherwise ``local[*]``.
        remote: a Spark Connect server, ``sc://host:port``; excludes ``master``.
        settings: further Spark settings; they override the defaults here.

    Raises:
        InvalidConfigError: both master and remote are given, or PySpark is not installed.
    """
    if master and remote:
        raise InvalidConfigError("--master and --remote cannot be combined")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InvalidConfigError("the pipeline needs PySpark: pip install 'paceline[pipeline]'") from error
    if remote:
        if remote.startswith("local"):
            # PySpark starts a server on this machine, with the packages of this interpreter.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.remote(remote)
        # Static settings of a running server cannot be changed; set only session settings.
        for key, value in {
            **{k: v for k, v in SETTINGS.items() if k.startswith("spark.sql.")},
            **(settings or {}),
        }.items():
            builder = builder.config(key, value)
    else:
        builder = SparkSession.builder.appName(name)
        # spark-submit starts this process from a JVM that knows the master; a master set here would override it.
        chosen = master or ("" if "PYSPARK_GATEWAY_PORT" in os.environ else "local[*]")
        builder = configure(builder.master(chosen) if chosen else builder)
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
