"""Measure the CPU time per record of the Python client without a network: accumulate and encode, fetch and decode.

    python -m benchmarks.client_codec [--records 500000] [--size 100] [--profile send_many]

Every figure is CPU time of one thread, best of three rounds. The bare compiled codec is measured in the same run, so
that the ratio is meaningful on a busy machine, too. The aims: `send_many` at 700,000 records a second and decoding at
1,000,000, both at 100 bytes.
"""

import argparse
import cProfile
import pstats
import random
import time
from collections.abc import Callable
from itertools import repeat

from benchmarks.stamp import headline, stamp
from paceline.log.compression import Codec
from paceline.log.record_batch import compiled_records, iterate_headers
from paceline.model.identifiers import TopicPartition
from paceline_client.codec import finish, new_encoder
from paceline_client.partitioner import key_hash, murmur2
from paceline_client.producer import DEFAULT_BATCH_SIZE, Producer
from paceline_client.subscription import OffsetReset, PartitionState
from paceline_client.wire import ProducePiece, decode_fetch_answer, encode_produce_request

PARTITIONS = 6
BATCH_BYTES = DEFAULT_BATCH_SIZE
ROUNDS = 3
AIMS = {"send_many": 700_000, "poll": 1_000_000, "poll_batches": 1_000_000}
_ACKS_ALL = 3


class _Metadata:
    """Metadata of six partitions with leaders, in place of the refresher."""

    def wait_for_topic(self, topic: str, timeout_s: float) -> int:
        return PARTITIONS

    def available_partitions(self, topic: str) -> list[int]:
        return list(range(PARTITIONS))

    def close(self) -> None:
        pass


class _Sender:
    """Encodes ready batches into requests and acknowledges them, on the caller's thread instead of a sender thread."""

    thread = None

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.request_bytes = 0

    def close(self, timeout_s: float) -> None:
        """Do nothing, because no thread runs."""

    def wake(self) -> None:
        """Send all full batches."""
        self.send_ready(0)

    def send_ready(self, now_ms: int) -> None:
        """Drain, encode and complete."""
        accumulator = self._producer._accumulator
        while batches := accumulator.drain(accumulator.ready(now_ms).partitions, 2 << 20, now_ms):
            pieces = []
            for batch in batches:
                queue = accumulator.queue(batch.topic_partition)
                assert batch.encoder is not None
                assert queue.producer_id is not None
                data = finish(batch.encoder, Codec.NONE, queue.producer_id, 0, batch.base_sequence or 0)
                pieces.append(ProducePiece(*batch.topic_partition, data))
            self.request_bytes += len(encode_produce_request(_ACKS_ALL, 30_000, pieces))
            for batch in batches:
                accumulator.complete(batch, 0, None)
            accumulator.take_ended()


def offline_producer() -> tuple[Producer, _Sender]:
    """Return a producer whose threads are stopped and whose requests are not sent."""
    producer = Producer("127.0.0.1:1", linger_ms=1_000_000_000)
    producer._sender.close(0)
    producer._metadata.close()
    producer._metadata = _Metadata()  # type: ignore[assignment]
    sender = _Sender(producer)
    producer._sender = sender  # type: ignore[assignment]
    producer._accumulator.set_producer_id(1, 0)
    producer._accumulator.flushing = 0
    return producer, sender


def best(run: Callable[[], int]) -> float:
    """Return the best rate of several rounds, in records per second of CPU time."""
    rates = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        count = run()
        rates.append(count / (time.thread_time() - began))
    return max(rates)


def produce_rates(count: int, size: int) -> dict[str, Callable[[], int]]:
    """Return the ways to produce; each is a function that runs a round and returns its number of records."""
    value = random.Random(1).randbytes(size)
    keys = [b"key-%04d" % number for number in range(1_000)]

    def bare_codec() -> int:
        encoder = new_encoder(BATCH_BYTES)
        index = 0
        for _ in range(count):
            if encoder.append(index, 1, None, value, []) is None:
                finish(encoder, Codec.NONE)
                encoder, index = new_encoder(BATCH_BYTES), 0
                encoder.append(0, 1, None, value, [])
            index += 1
        return count

    def send_many() -> int:
        producer, sender = offline_producer()
        producer.send_many("t", repeat((None, value), count))
        sender.send_ready(2_000_000_000)
        return count

    def send_many_keys() -> int:
        producer, sender = offline_producer()
        producer.send_many("t", ((keys[n % 1_000], value) for n in range(count)))
        sender.send_ready(2_000_000_000)
        return count

    def send() -> int:
        producer, sender = offline_producer()
        call = producer.send
        for _ in range(count):
            call("t", value)
        sender.send_ready(2_000_000_000)
        return count

    return {"bare encoder": bare_codec, "send_many": send_many, "send_many with keys": send_many_keys, "send": send}


def consume_rates(count: int, size: int) -> dict[str, Callable[[], int]]:
    """Return the ways to consume a fetch response of one partition."""
    from paceline.v1.log_service_pb2 import FetchPartitionResult, FetchResponse

    value = random.Random(1).randbytes(size)
    batches, made = [], 0
    encoder, index = new_encoder(BATCH_BYTES), 0
    while made < min(count, 4 * 1024 * 1024 // (size + 10)):
        if encoder.append(index, 1_700_000_000_000, None, value, []) is None:
            batch = bytearray(finish(encoder, Codec.NONE))
            batch[:8] = (made - index).to_bytes(8, "big")
            batches.append(bytes(batch))
            encoder, index = new_encoder(BATCH_BYTES), 0
            continue
        index += 1
        made += 1
    data = b"".join(batches)
    records = sum(header.record_count for _, header in iterate_headers(data))
    body = FetchResponse(
        partitions=[FetchPartitionResult(topic="t", partition=0, batches=data, high_watermark=records)]
    ).SerializeToString()
    repeats = max(1, count // records)

    def fetched() -> PartitionState:
        state = PartitionState(TopicPartition("t", 0), OffsetReset.EARLIEST)
        state.seek(0)
        (part,) = decode_fetch_answer(body).partitions
        state.take_fetched(part.batches, part.high_watermark)
        return state

    def bare_codec() -> int:
        total = 0
        for _ in range(repeats):
            for at, header in iterate_headers(data):
                for record in compiled_records(memoryview(data)[at : at + header.size], header):
                    assert record.value is not None
                    total += 1
        return total

    def poll() -> int:
        total = 0
        for _ in range(repeats):
            state = fetched()
            while records := state.hand_out(10_000, True):
                total += len(records)
        return total

    def poll_batches() -> int:
        total = 0
        for _ in range(repeats):
            state = fetched()
            while batches := state.hand_out_raw():
                total += batches.next_offset - batches.first_offset
        return total

    return {"bare decoder": bare_codec, "poll": poll, "poll_batches": poll_batches}


def partitioner_rates() -> dict[str, Callable[[], int]]:
    """Return the rounds that only compute the key hash, with and without the cache."""
    keys = [b"key-%012d" % number for number in range(100_000)]

    def uncached() -> int:
        for key in keys:
            murmur2(key)
        return len(keys)

    def cached() -> int:
        for _ in range(10):
            for key in keys[:10_000]:
                key_hash(key)
        return 100_000

    return {"murmur2, 16 byte key": uncached, "cached key": cached}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client_codec", description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--profile", metavar="NAME", help="profile this measurement instead")
    arguments = parser.parse_args()
    print(headline(stamp()), flush=True)
    groups = [
        produce_rates(arguments.records, arguments.size),
        consume_rates(arguments.records, arguments.size),
        partitioner_rates(),
    ]
    if arguments.profile:
        run = {name: run for group in groups for name, run in group.items()}[arguments.profile]
        profile = cProfile.Profile()
        profile.runcall(run)
        pstats.Stats(profile).sort_stats("tottime").print_stats(15)
        return
    for group in groups:
        reference = 0.0
        for name, run in group.items():
            rate = best(run)
            reference = reference or rate
            aim = f"  aim {AIMS[name]:,}" if name in AIMS and arguments.size == 100 else ""
            megabytes = "" if "key" in name and "send" not in name else f"{rate * arguments.size / 1e6:8,.0f} MB/s"
            print(
                f"  {name:<22}{rate:>12,.0f} /s {1e9 / rate:>7,.0f} ns {megabytes}  "
                f"{rate / reference:.2f} of {next(iter(group))}{aim}",
                flush=True,
            )


if __name__ == "__main__":
    main()
