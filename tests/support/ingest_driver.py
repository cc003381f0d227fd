"""A separate driver process for an ingest, killed with SIGKILL after a step: ``python -m tests.support.ingest_driver``.

Arguments: bootstrap servers, topic, table, table format, and the step after which it kills itself ("" for none).
"""

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from paceline.pipeline.jobs.ingest import job
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline.pipeline.jobs.sessions import open_session


class KilledAfter:
    """Ends this process as ``kill -9`` does, after a step."""

    def __init__(self, step: str) -> None:
        self._step = step

    def step(self, name: str, facts: Mapping[str, Any]) -> None:
        if name == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Ingest a topic."""
    bootstrap, topic, table, table_format, step = sys.argv[1:]
    config = IngestConfig((bootstrap,), (topic,), table, table_format)
    settings = {"spark.driver.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2"}
    with open_session("ingest-test", "local[2]", settings=settings) as spark:
        print(dict(job.run(spark, config, KilledAfter(step)).summary))


if __name__ == "__main__":
    main()
