"""Measure compaction in MB/s of the log that it reads, for several record sizes, in a separate directory.

python -m benchmarks.compaction --megabytes 64
"""

import argparse
import random
import shutil
import tempfile
import time

from paceline.log.compression import Codec
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.os_files import OsFiles
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.identifiers import TopicPartition

CONFIG = LogConfig(segment_bytes=16 << 20, cleanup_policy=frozenset({"compact"}))


def measure(megabytes: int, value_bytes: int, codec: Codec, keys: int) -> float:
    """Return MB/s of the first cleaning of a log."""
    root = tempfile.mkdtemp(prefix="paceline-compaction-")
    chance = random.Random(7)
    try:
        manager = LogManager(OsFiles(), [root], CONFIG, on_dir_failure=lambda _path, error: print(error))
        manager.load(0)
        log = manager.get_or_create(TopicPartition("compacted", 0), None, True)
        while log.size_bytes < megabytes << 20:
            records = [
                NewRecord(1, b"key-%08d" % chance.randrange(keys), chance.randbytes(value_bytes // 2).hex().encode())
                for _ in range(100)
            ]
            log.append_as_leader(encode_batch(records, codec=codec), 0, 1)
        log.flush()
        log.update_high_watermark(log.log_end_offset)
        found = log.compaction.find_cleanable(1)
        assert found is not None
        begin = time.perf_counter()
        task = log.compaction.begin(found, 1, 128 << 20, 0.9)
        while not task.is_finished:
            task.run(1 << 20)
            if task.cleaned is not None:
                log.remove_files(log.compaction.replace_segments(task, task.cleaned))
        log.compaction.finish(task)
        return found.dirty_bytes / 1e6 / (time.perf_counter() - begin)
    finally:
        shutil.rmtree(root)


def main() -> None:
    """Print one line for each kind of log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64)
    arguments = parser.parse_args()
    for value_bytes in (100, 1_000):
        for codec in (Codec.NONE, Codec.LZ4):
            rate = measure(arguments.megabytes, value_bytes, codec, 10_000)
            print(f"values of {value_bytes} bytes, {codec.name.lower()}: {rate:.0f} MB/s")


if __name__ == "__main__":
    main()
