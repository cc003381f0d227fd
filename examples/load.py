"""A producer and a consumer that print their records: the profile `load` of docker-compose.yml.

    python examples/load.py produce     create the topic, send numbered records, print the acknowledged ones
    python examples/load.py consume     read them as a member of a group, check that each number comes once and in order

PACELINE_BOOTSTRAP_SERVERS and PACELINE_SSL_* name brokers and certificates. SIGTERM ends either program; the exit code
is 3 when a record was lost, doubled or out of order.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable

from paceline.model.errors import PacelineError, TopicAlreadyExistsError
from paceline_client import Admin, Consumer, NewTopic, Producer
from paceline_client.batch import RecordFuture

KEYS = 100
PRINT_EVERY_S = 2.0


def say(text: str) -> None:
    """Print a line at once, with the time of day."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def create_topic(bootstrap: str, topic: str) -> None:
    """Create the topic with three replicas and ``min.insync.replicas`` of 2, unless it exists."""
    with Admin(bootstrap) as admin:
        new = NewTopic(topic, partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
        (result,) = admin.create_topics([new], raise_errors=False)
    if result.error is not None and not isinstance(result.error, TopicAlreadyExistsError):
        raise result.error


def produce(bootstrap: str, topic: str, rate: int, stopping: threading.Event) -> int:
    """Send records until stopped; return the number of failed records."""
    run = f"{os.getpid()}-{time.time_ns():x}"
    begin = printed = time.monotonic()
    sent = acknowledged = failed = 0
    pending: list[RecordFuture] = []
    create_topic(bootstrap, topic)
    with Producer(bootstrap, linger_ms=5) as producer:
        while not stopping.is_set():
            while sent < (time.monotonic() - begin) * rate:
                value = f"{run}:{sent // KEYS}"
                pending.append(producer.send(topic, value.encode(), key=f"key-{sent % KEYS}".encode()))
                sent += 1
            stopping.wait(0.02)
            done: list[RecordFuture] = []
            waiting: list[RecordFuture] = []
            for future in pending:
                (done if future.done() else waiting).append(future)
            pending = waiting
            acknowledged, failed = _count(done, acknowledged, failed)
            if time.monotonic() - printed >= PRINT_EVERY_S:
                printed = time.monotonic()
                waiting_count = len(pending)
                say(f"produced topic={topic} sent={sent} {acknowledged=} waiting={waiting_count} {failed=}")
        producer.flush(60.0)
        acknowledged, failed = _count(pending, acknowledged, failed)
    say(f"produced topic={topic} sent={sent} acknowledged={acknowledged} waiting=0 failed={failed}")
    return failed


def _count(futures: Iterable[RecordFuture], acknowledged: int, failed: int) -> tuple[int, int]:
    for future in futures:
        try:
            future.result(60.0)
            acknowledged += 1
        except PacelineError as error:
            failed += 1
            say(f"failed: {error}")
    return acknowledged, failed


def consume(bootstrap: str, topic: str, group: str, stopping: threading.Event) -> int:
    """Read records until stopped; return the number of records that were lost, doubled or out of order."""
    latest: dict[tuple[str, bytes], int] = {}
    read = wrong = 0
    printed = time.monotonic()
    with Consumer(bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        while not stopping.is_set():
            for records in consumer.poll(timeout_ms=500).values():
                for record in records:
                    run, _, number = (record.value or b"").decode().rpartition(":")
                    expected = latest.get((run, record.key or b""), int(number) - 1) + 1
                    # A group begins at its committed offset, so the first number of a key after a start can be any.
                    if int(number) != expected:
                        wrong += 1
                        place = f"{record.topic}/{record.partition}@{record.offset}"
                        say(f"wrong: {place} has {number}, expected {expected}")
                    latest[run, record.key or b""] = int(number)
                    read += 1
            if time.monotonic() - printed >= PRINT_EVERY_S:
                printed = time.monotonic()
                say(f"consumed topic={topic} group={group} read={read} wrong={wrong}")
    say(f"consumed topic={topic} group={group} read={read} wrong={wrong}")
    return wrong


def main() -> int:
    """Run the producer or the consumer and return the exit code."""
    parser = argparse.ArgumentParser(description="Print what a producer or a consumer sees.")
    parser.add_argument("role", choices=("produce", "consume"))
    parser.add_argument("--bootstrap", default=os.environ.get("PACELINE_BOOTSTRAP_SERVERS", "127.0.0.1:9102"))
    parser.add_argument("--topic", default="load")
    parser.add_argument("--group", default="load")
    parser.add_argument("--rate", type=int, default=500, help="records per second (%(default)s)")
    options = parser.parse_args()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        if options.role == "produce":
            wrong = produce(options.bootstrap, options.topic, options.rate, stopping)
        else:
            wrong = consume(options.bootstrap, options.topic, options.group, stopping)
    except PacelineError as error:
        say(str(error))
        return 1
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
