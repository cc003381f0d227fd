"""Install Spark's own Kafka source, for comparisons only: PySpark 4.2.0 in a separate environment, jars from Maven.

The newest Spark for which Maven Central has spark-sql-kafka-0-10_2.13 is 4.2.0, so this source cannot run in the
environment of this repository. `fetch_environment` installs PySpark and the jars once, under build/spark-kafka.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.kafka import ROOT, KafkaNotAvailableError

FOLDER = ROOT / "build" / "spark-kafka"
POM = ROOT / "benchmarks" / "spark-kafka" / "pom.xml"
REQUIREMENTS = ("pyspark==4.2.0", "pyarrow>=15,<27", "pandas>=2.2,<3", "numpy>=1.26,<3", "deltalake>=1.2,<2")
_TIMEOUT_S = 900.0
_WANTED = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
"""Jars to download; Spark contains the other dependencies."""


def fetch_environment() -> tuple[Path, list[Path]]:
    """Return the interpreter that has PySpark 4.2.0, and the jars; fetch them the first time.

    Raises:
        KafkaNotAvailableError: Maven or pip is missing or failed.
    """
    python = FOLDER / "venv" / "bin" / "python"
    ready = FOLDER / ".ready"
    if not ready.exists() or ready.read_text() != "\n".join(REQUIREMENTS):
        if shutil.which("mvn") is None:
            raise KafkaNotAvailableError("no build/spark-kafka and no mvn to fetch it")
        FOLDER.mkdir(parents=True, exist_ok=True)
        _run("mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={FOLDER / 'jars'}")
        _run(sys.executable, "-m", "venv", str(FOLDER / "venv"))
        _run(str(python), "-m", "pip", "install", "-q", *REQUIREMENTS)
        ready.write_text("\n".join(REQUIREMENTS))
    jars = [jar for jar in sorted((FOLDER / "jars").glob("*.jar")) if jar.name.startswith(_WANTED)]
    return python, jars


def environment_of_child() -> dict[str, str]:
    """Return the environment variables for a PySpark 4.2.0 process, without those of this interpreter's PySpark."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "PYTHON"))}
    return kept | {"PYSPARK_PYTHON": str(FOLDER / "venv" / "bin" / "python")}


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        raise KafkaNotAvailableError(f"{command[0]} failed: {done.stdout[-500:]}{done.stderr[-500:]}")
