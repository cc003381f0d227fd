"""Kafka's own DumpLogSegments reads what we wrote: every checksum valid, every record there, every index sane.

Needs Java, and either ``build/kafka-jars`` or Maven and its repository to fill it (``kafka-tools/pom.xml``).
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from paceline.log.compression import Codec
from paceline.log.directory_names import directory_name
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.os_files import OsFiles
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.identifiers import TopicPartition

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / "build" / "kafka-jars"
POM = ROOT / "tests" / "golden" / "kafka-tools" / "pom.xml"
TP = TopicPartition("written-by-paceline", 0)
NOW_MS = 1_700_000_000_000
BATCH = re.compile(r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .* isvalid: (true|false)", re.MULTILINE)
RECORD = re.compile(r"^\| offset: (\d+) CreateTime: (\d+) .*? key: (\S+) payload: (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def jars() -> Path:
    """Kafka's jars, fetched once."""
    if shutil.which("java") is None:
        pytest.skip("no java")
    if not list(JARS.glob("kafka_2.13-*.jar")):
        if shutil.which("mvn") is None:
            pytest.skip("no build/kafka-jars and no mvn to fetch them")
        command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={JARS}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip("Maven did not deliver Kafka's jars in time")
        if done.returncode != 0:
            pytest.skip(f"Maven cannot fetch Kafka's jars: {done.stdout[-300:]}")
    return JARS


def dump(jars: Path, files: list[Path], *options: str) -> str:
    names = ",".join(str(file) for file in files)
    done = subprocess.run(
        ["java", "-Xmx128m", "-cp", f"{jars}/*", "kafka.tools.DumpLogSegments", "--files", names, *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A log of ours: every codec, idempotent and plain producers, several epochs and segments, a truncation."""
    root = tmp_path_factory.mktemp("kafka")
    config = LogConfig(segment_bytes=6000, index_interval_bytes=300, segment_index_bytes=4096)
    manager = LogManager(OsFiles(), [str(root)], config, on_dir_failure=lambda _path, _error: None)
    manager.load(NOW_MS)
    log = manager.get_or_create(TP, "YEfp66rqS3WxsP2P99t8ZQ", True)
    for number in range(120):
        records = [
            NewRecord(NOW_MS + 10 * number + i, b"key%d" % number, b"value-%d-%d" % (number, i) * 8, [("h", b"x")])
            for i in range(1 + number % 4)
        ]
        producer = {"producer_id": 7, "producer_epoch": number, "base_sequence": 0} if number % 3 == 0 else {}
        log.append_as_leader(encode_batch(records, codec=Codec(number % 5), **producer), number // 25, NOW_MS)
        if number == 60:
            log.truncate_to(log.log_end_offset - 20)
    end = log.log_end_offset
    manager.shutdown()
    return root / directory_name(TP), end


def test_every_batch_and_record_is_valid(jars: Path, written: tuple[Path, int]) -> None:
    directory, end = written
    files = sorted(directory.glob("*.log"))
    assert len(files) > 3
    output = dump(jars, files, "--deep-iteration", "--print-data-log")
    batches = [(int(first), int(last)) for first, last, _, valid in BATCH.findall(output) if valid == "true"]
    assert len(batches) == len(re.findall(r"^baseOffset:", output, re.MULTILINE)) == len(BATCH.findall(output))
    records = [(int(offset), key, payload) for offset, _, key, payload in RECORD.findall(output)]
    expected = [offset for first, last in batches for offset in range(first, last + 1)]
    assert [offset for offset, _, _ in records] == expected
    assert expected[0] == 0 and expected[-1] == end - 1
    assert all(payload.startswith("value-" + key.removeprefix("key")) for _, key, payload in records)


def test_every_index_is_sane(jars: Path, written: tuple[Path, int]) -> None:
    directory, _ = written
    indexes = sorted(directory.glob("*.index"))
    assert sum(index.stat().st_size for index in indexes) > 0
    output = dump(jars, indexes, "--index-sanity-check")
    assert output.count("passed sanity check") == len(indexes)
    output = dump(jars, indexes, "--verify-index-only")
    assert "mismatch" not in output.lower()
    times = sorted(directory.glob("*.timeindex"))
    output = dump(jars, times, "--verify-index-only")
    assert "mismatch" not in output.lower() and "out of order" not in output.lower()


def test_the_producer_snapshots_are_read(jars: Path, written: tuple[Path, int]) -> None:
    directory, end = written
    snapshots = sorted(directory.glob("*.snapshot"))
    assert int(snapshots[-1].stem) == end
    output = dump(jars, snapshots)
    assert "producerId: 7" in output and "Exception" not in output
