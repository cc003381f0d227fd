"""The samples that use a gateway, against gateways whose behaviour the tests set."""

import socket
from collections.abc import Iterator

import pytest

from paceline.model.errors import ErrorCode
from tests.conformance.clusters import wait_until
from tests.conformance.samples import ENDED, Read, Sample, known_samples
from tests.conformance.scripted_gateway import ScriptedGateway
from tests.integration.tcp_proxy import TcpProxy

TOPIC = "orders"
PER_CALL = 500
"""Largest number of records that a sample sends with one call."""
VALUES = [b"%d" % number for number in range(2 * PER_CALL + 34)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(one, id=language, marks=(pytest.mark.slow,) if one.slow else ())
        for language, one in sorted(known_samples().items())
    ],
)
def sample(request: pytest.FixtureRequest) -> Sample:
    """The samples of a language; a language without its tools is skipped."""
    wanted: Sample = request.param
    return wanted.build_or_skip()


@pytest.fixture
def gateways() -> Iterator[tuple[ScriptedGateway, ScriptedGateway]]:
    """Two gateways of one cluster."""
    first, second = ScriptedGateway(TOPIC), ScriptedGateway(TOPIC)
    second.logs, second.committed = first.logs, first.committed
    yield first, second
    first.stop()
    second.stop()


@pytest.mark.parametrize("count", [len(VALUES), PER_CALL])
def test_lines_become_records_in_their_order(sample: Sample, gateways: tuple[ScriptedGateway, ...], count: int) -> None:
    done = sample.publish([gateways[0].address], TOPIC, VALUES[:count])
    assert (done.returncode, done.stdout) == (0, b"%d records published\n" % count), done.stderr
    assert gateways[0].logs == [VALUES[0:count:2], VALUES[1:count:2]]


def test_a_refused_call_is_repeated_at_the_next_gateway(sample: Sample, gateways: tuple[ScriptedGateway, ...]) -> None:
    with socket.socket() as nothing:
        nothing.bind(("127.0.0.1", 0))  # Without listen(), connections are refused.
        unreachable = f"127.0.0.1:{nothing.getsockname()[1]}"
        gateways[0].refused_calls = [ErrorCode.SHUTTING_DOWN]
        done = sample.publish([unreachable, *(one.address for one in gateways)], TOPIC, VALUES)
    assert done.returncode == 0, done.stderr
    assert gateways[0].logs == [VALUES[0::2], VALUES[1::2]]
    assert b"SHUTTING_DOWN" in done.stderr or b"on purpose" in done.stderr


def test_a_lost_answer_doubles_the_records_of_one_call_and_loses_none(
    sample: Sample, gateways: tuple[ScriptedGateway, ...]
) -> None:
    gateways[0].lost_answers = 1
    done = sample.publish([one.address for one in gateways], TOPIC, VALUES)
    assert done.returncode == 0, done.stderr
    first, second = gateways[0].logs
    sent = VALUES[:PER_CALL] + VALUES
    assert sorted(first + second) == sorted(sent)


@pytest.mark.parametrize(
    ("topic", "values", "reason"),
    [("missing", [b"v"], b"there is no topic missing"), (TOPIC, [b"good", b"bad"], b"MESSAGE_TOO_LARGE")],
)
def test_a_publisher_ends_at_an_error_that_does_not_pass(
    sample: Sample, gateways: tuple[ScriptedGateway, ...], topic: str, values: list[bytes], reason: bytes
) -> None:
    gateways[0].refused_values = {b"bad": ErrorCode.MESSAGE_TOO_LARGE}
    done = sample.publish([gateways[0].address], topic, values, timeout_s=20.0)
    assert done.returncode not in ENDED
    assert reason in done.stderr
    assert b"records published" not in done.stdout


def test_a_subscriber_acknowledges_records_that_it_has_printed_and_closes_its_stream(
    sample: Sample, gateways: tuple[ScriptedGateway, ...]
) -> None:
    gateway = gateways[0]
    gateway.logs[:] = [VALUES[0::2], VALUES[1::2]]
    subscriber = sample.subscriber([gateway.address], TOPIC, "billing")
    try:
        wait_until(lambda: gateway.committed == [len(log) for log in gateway.logs], "all is acknowledged", 30.0)
        gateway.logs[1].append(b"last")
        wait_until(lambda: gateway.committed == [len(log) for log in gateway.logs], "the last is acknowledged", 30.0)
        assert subscriber.stop() in ENDED, subscriber.complaints
    finally:
        subscriber.kill()
    assert_read(subscriber.read, gateway.logs)
    assert gateway.closed_by_caller == 1
    (subscription,) = gateway.subscriptions
    assert (list(subscription.topics), subscription.group) == ([TOPIC], "billing")


def test_a_subscriber_continues_at_the_next_gateway(sample: Sample, gateways: tuple[ScriptedGateway, ...]) -> None:
    first, second = gateways
    first.logs[:] = [VALUES[0::2], VALUES[1::2]]
    first.end_after, second.refused_calls = [3], [ErrorCode.REBALANCE_IN_PROGRESS]
    subscriber = sample.subscriber([first.address, second.address], TOPIC, "billing")
    try:
        wait_until(lambda: first.committed == [len(log) for log in first.logs], "all is acknowledged", 30.0)
        assert subscriber.stop() in ENDED, subscriber.complaints
    finally:
        subscriber.kill()
    assert b"the gateway stops" in subscriber.complaints
    read = {(one.partition, one.offset, one.value) for one in subscriber.read}
    assert read == {(p, o, value) for p, log in enumerate(first.logs) for o, value in enumerate(log)}
    # Records whose acknowledgement the first stream did not read any more are delivered again.
    assert len(subscriber.read) <= len(VALUES) + 30


def test_a_subscriber_survives_a_broken_connection(sample: Sample, gateways: tuple[ScriptedGateway, ...]) -> None:
    first, second = gateways
    host, port = first.address.split(":")
    proxy = TcpProxy(host, int(port))
    subscriber = sample.subscriber([proxy.address, second.address], TOPIC, "billing")
    try:
        first.logs[0].extend(VALUES)
        wait_until(lambda: first.committed[0] == len(VALUES), "all is acknowledged", 30.0)
        proxy.sever()
        first.logs[1].extend(VALUES)
        wait_until(lambda: first.committed[1] == len(VALUES), "the rest is acknowledged", 30.0)
        assert subscriber.stop() in ENDED, subscriber.complaints
    finally:
        subscriber.kill()
        proxy.close()
    assert_read(subscriber.read, first.logs)
    assert len(second.subscriptions) == 1


def test_a_subscriber_ends_at_an_error_that_does_not_pass(
    sample: Sample, gateways: tuple[ScriptedGateway, ...]
) -> None:
    gateways[0].refused_calls = [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
    subscriber = sample.subscriber([gateways[0].address], TOPIC, "billing")
    try:
        assert subscriber.wait() not in ENDED
    finally:
        subscriber.kill()
    assert b"on purpose" in subscriber.complaints
    assert len(gateways[0].refused_calls) == 0


def assert_read(read: list[Read], logs: list[list[bytes]]) -> None:
    """Check that a subscriber has read every record once, those of each partition in order."""
    for partition, log in enumerate(logs):
        assert [(one.offset, one.value) for one in read if one.partition == partition] == list(enumerate(log))
