"""Clients that share channels and metadata, and `Consumer.wakeup`."""

import threading
import time
from pathlib import Path

import pytest

from paceline.model.errors import InvalidRequestError
from paceline.model.identifiers import TopicPartition
from paceline.model.tls import TlsFiles
from paceline_client import Connections, Consumer, Producer
from tests.integration.client_clusters import ONE, consumer_cluster, read
from tests.integration.fake_cluster import FakeCluster

__all__ = ["consumer_cluster"]


def threads_of_metadata() -> int:
    return sum(one.name.endswith("-metadata") for one in threading.enumerate())


def test_clients_share_channels_and_metadata_and_leave_them_open(cluster: FakeCluster) -> None:
    before = threads_of_metadata()
    with Connections(cluster.bootstrap, name="shared") as connections:
        first, second = Consumer(connections), Consumer(connections)
        with Producer(connections) as producer:
            assert threads_of_metadata() == before + 1
            assert producer._channels is first._channels is second._channels
            producer.send("one", b"a").result(30)
        first.assign([ONE])
        assert [record.value for record in read(first, 1)] == [b"a"]
        first.close()
        second.assign([ONE])
        assert [record.value for record in read(second, 1)] == [b"a"]
        second.close()
        assert connections.metadata.brokers()
    assert threads_of_metadata() == before


def test_named_connections_leave_the_channels_of_the_shared_ones_open(cluster: FakeCluster) -> None:
    with Connections(cluster.bootstrap) as connections:
        named = connections.named("User:a")
        assert named.metadata.wait_for_brokers(30)
        named.close()
        with Producer(connections) as producer:
            producer.send("one", b"a").result(30)


def test_shared_connections_with_other_certificates_are_refused(cluster: FakeCluster) -> None:
    with Connections(cluster.bootstrap) as connections, pytest.raises(InvalidRequestError, match="leave out tls"):
        Consumer(connections, tls=TlsFiles(Path("ca.crt")))


def test_wakeup_ends_the_present_poll_or_the_next_one(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap, auto_offset_reset="latest") as consumer:
        consumer.assign([TopicPartition("one", 0)])
        consumer.position(ONE)
        timer = threading.Timer(0.3, consumer.wakeup)
        timer.start()
        began = time.monotonic()
        assert consumer.poll(30_000) == {}
        assert time.monotonic() - began < 15
        consumer.wakeup()
        assert consumer.poll(30_000) == {}
        assert time.monotonic() - began < 15
