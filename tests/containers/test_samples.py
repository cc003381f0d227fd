"""The samples of all languages, while the containers of a leader, a gateway and the group's coordinator are killed.

The publisher sends 100,000 lines, two subscribers of one group read them; the promise is that of gateway_service.proto.
"""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from paceline_client import AccessRule, Admin, Consumer, NewTopic
from tests.conformance.clusters import fresh_topic
from tests.conformance.promise import Committed, check_deliveries, check_log
from tests.conformance.samples import ENDED, Sample, known_samples
from tests.conformance.test_samples import PER_CALL
from tests.containers.compose import BROKERS, GATEWAYS, ComposeCluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800), pytest.mark.slow]

RECORDS = 100_000
PARTITIONS = 6
CHUNKS = 40
"""The lines are written in so many parts; a fault happens right after one."""
CHUNK_PAUSE_S = 0.5
WATCH_S = 0.2
PATIENCE_S = 180.0


@pytest.fixture
def admin(cluster: ComposeCluster) -> Iterator[Admin]:
    """An admin client of the brokers."""
    with Admin(cluster.bootstrap, tls=cluster.tls) as client:
        yield client


@pytest.fixture(params=[pytest.param(one, id=language) for language, one in sorted(known_samples().items())])
def sample(request: pytest.FixtureRequest) -> Sample:
    """The samples of a language; a language without its tools is skipped."""
    wanted: Sample = request.param
    return wanted.build_or_skip()


class CommittedPositions:
    """Observes the committed positions of a group in the background."""

    def __init__(self, admin: Admin, group: str) -> None:
        self.observed: list[tuple[float, Committed]] = []
        self._admin, self._group, self._ended = admin, group, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the observation."""
        self._ended.set()
        self._thread.join(PATIENCE_S)

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_S):
            try:
                found = self._admin.group_offsets(self._group, timeout_ms=2_000)
            except PacelineError:
                continue  # The coordinator is dead at the moment.
            self.observed.append((time.monotonic(), {one.partition: at.offset for one, at in found.items()}))


def leader_of(admin: Admin, topic: str) -> int:
    """Return the leader of the first partition."""

    def known() -> int:
        (found,) = admin.describe_topics([topic])
        return found.partitions[0].leader or 0

    return eventually(known, PATIENCE_S, f"{topic} has a leader")


def coordinator_of(admin: Admin, group: str) -> int:
    """Return the coordinator of a group."""

    def known() -> int:
        try:
            (found,) = admin.describe_groups([group])
        except PacelineError:
            return 0
        return found.coordinator

    return eventually(known, PATIENCE_S, f"{group} has a coordinator")


def publish(process: subprocess.Popen[bytes], values: list[bytes], faults: Mapping[int, Callable[[], None]]) -> bytes:
    """Write the lines in chunks, with a fault after some of them; return the complaints of the ended publisher."""
    assert process.stdin is not None and process.stderr is not None
    complaints: list[bytes] = []
    reader = threading.Thread(target=lambda: complaints.extend(process.stderr or ()), daemon=True)
    reader.start()
    size = len(values) // CHUNKS
    for chunk in range(CHUNKS):
        process.stdin.write(b"".join(value + b"\n" for value in values[chunk * size : (chunk + 1) * size]))
        process.stdin.flush()
        if chunk in faults:
            faults[chunk]()
        time.sleep(CHUNK_PAUSE_S)
    process.stdin.close()
    code = process.wait(PATIENCE_S)
    reader.join(PATIENCE_S)
    assert code == 0, complaints
    return b"".join(complaints)


def test_samples_lose_nothing_while_containers_are_killed(
    sample: Sample, cluster: ComposeCluster, admin: Admin
) -> None:
    topic, group, tls = fresh_topic(), fresh_topic(), cluster.files("sample")
    admin.create_topics([NewTopic(topic, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
    rules = (("Write", "Topic", topic), ("Read", "Topic", topic), ("Read", "Group", group))
    admin.create_acls([AccessRule("User:sample", *rule) for rule in rules])
    values = [b"%d" % number for number in range(RECORDS)]
    first, second = (cluster.address(gateway) for gateway in GATEWAYS)
    subscribers = [sample.subscriber(addresses, topic, group, tls) for addresses in ([first, second], [second, first])]
    committed = CommittedPositions(admin, group)
    publisher = sample.publisher([first, second], topic, tls)
    killed: list[str] = []

    def kill(service: str) -> None:
        killed.append(service)
        cluster.kill(service)

    def restart() -> None:
        cluster.start(killed[-1])

    faults = {
        8: lambda: kill(BROKERS[leader_of(admin, topic)]),
        14: restart,
        18: lambda: kill(GATEWAYS[0]),
        24: restart,
        28: lambda: kill(BROKERS[coordinator_of(admin, group)]),
        34: restart,
    }
    try:
        complaints = publish(publisher, values, faults)
        with Consumer(cluster.bootstrap, tls=cluster.tls) as consumer:
            ends = consumer.end_offsets([TopicPartition(topic, partition) for partition in range(PARTITIONS)])

        def read() -> int:
            return len({(one.partition, one.offset) for subscriber in subscribers for one in subscriber.read})

        eventually(lambda: read() == sum(ends.values()), PATIENCE_S, f"all of {ends} is read")
        codes = [subscriber.stop() for subscriber in subscribers]
    finally:
        committed.stop()
        publisher.kill()
        for subscriber in subscribers:
            subscriber.kill()
    assert all(code in ENDED for code in codes), [subscriber.complaints for subscriber in subscribers]
    reads = [one for subscriber in subscribers for one in subscriber.read]
    log = {(one.partition, one.offset): one.value for one in reads}
    assert all(log[one.partition, one.offset] == one.value for one in reads)
    repeated = complaints.count(b"next gateway")
    doubles = check_log(log, values, repeated * PER_CALL)
    again = check_deliveries(reads, committed.observed)
    print(f"{sample.language}: {repeated} calls repeated, {doubles} values twice, {again} records delivered again")
