"""A small Spark session shared by all tests that need Spark, because it takes seconds to start."""

from collections.abc import Iterator
from typing import Any

import pytest

from paceline.pipeline.session import configure


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session with two cores, a small heap and our settings; Spark finds the source without registration."""
    from pyspark.sql import SparkSession

    where = tmp_path_factory.mktemp("spark")
    builder = (
        configure(SparkSession.builder.master("local[2]").appName("paceline-tests"))
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(where / "warehouse"))
        .config("spark.local.dir", str(where / "local"))
        .config("spark.log.level", "ERROR")
    )
    session = builder.getOrCreate()
    yield session
    session.stop()
