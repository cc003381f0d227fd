"""Lets Spark find Paceline by itself: ``spark.read.format("paceline")`` works once the package is installed.

Spark imports every top-level module called ``pyspark_*`` and registers its ``DefaultSource``. The source itself
lives in `paceline.pipeline`. ``configure(SparkSession.builder)`` sets what makes it fast.
"""

from paceline.pipeline.data_source import PacelineDataSource as DefaultSource
from paceline.pipeline.session import configure, register

__all__ = ["DefaultSource", "configure", "register"]
