"""A leader serves without ZooKeeper and controllers, and stops serving when its followers fail as well."""

import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.errors import ErrorCode
from paceline.v1 import log_service_pb2 as pb
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline.v1.record_pb2 import Record, RecordList
from paceline_client import Admin
from tests.support.embedded_zookeeper import pause, resume
from tests.support.waiting import eventually

TOPIC = "proved"
SESSION_MS, LEASE_MS = 4_000, 4_000
OUTAGE_S = 3 * max(SESSION_MS, LEASE_MS) / 1000
BOUND_S = 30.0
"""Session timeout plus lease plus a third of both, and a reserve for a busy machine."""
LONG_S = 120.0


class Leader:
    """A minimal client that talks to one broker only."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._log = LogServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)

    def produce(self, acks: "pb.Acks") -> int:
        """Write one record; return the error code, 0 for none."""
        records = RecordList(records=[Record(value=b"x")])
        part = pb.ProducePartition(topic=TOPIC, partition=0, records=records)
        request = pb.ProduceRequest(acks=acks, timeout_ms=10_000, partitions=[part])
        return self._log.Produce(request, timeout=LONG_S).partitions[0].error.code

    def end(self) -> int:
        """Request the end offset; return the error code, 0 for none."""
        part = pb.ListOffsetsPartition(topic=TOPIC, partition=0, spec=pb.OFFSET_SPEC_LATEST)
        return self._log.ListOffsets(pb.ListOffsetsRequest(partitions=[part]), timeout=LONG_S).partitions[0].error.code

    def fetch_beyond_the_end(self) -> int:
        """Fetch at an offset beyond the end of the log; return the error code."""
        part = pb.FetchPartition(topic=TOPIC, partition=0, fetch_offset=1_000_000)
        return self._log.Fetch(pb.FetchRequest(partitions=[part]), timeout=LONG_S).partitions[0].error.code

    @property
    def is_ready(self) -> bool:
        """Whether the broker's readiness check returns SERVING."""
        answer = self._health.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=LONG_S)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_an_outage_of_zookeeper_stops_no_leader_and_the_loss_of_followers_does(tmp_path: Path) -> None:
    settings = {
        "controller.broker.lease.ms": str(LEASE_MS),
        "zookeeper.session.timeout.ms": str(SESSION_MS),
        "replica.lag.time.max.ms": "60000",
    }
    cluster = LocalCluster(
        tmp_path, CONFIG_FILE, brokers=2, controllers=1, settings=settings, ports=free_plan(1, 2), heap_mib=64
    )
    try:
        cluster.start()
        assert cluster.zookeeper is not None
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({TOPIC: (1, 2, {"min.insync.replicas": "2"})})
            leader_id = admin.describe_topics([TOPIC])[0].partitions[0].leader
        assert leader_id is not None
        follower = cluster.broker(3 - leader_id)
        with grpc.insecure_channel(cluster.broker(leader_id).client_address) as channel:
            leader = Leader(channel)
            eventually(lambda: leader.produce(pb.ACKS_ALL) == 0, LONG_S, "the first record is written")

            pause(cluster.zookeeper)
            cluster.pause(cluster.controller(0))
            until, written, refused = time.monotonic() + OUTAGE_S, 0, 0
            while time.monotonic() < until:
                code = leader.produce(pb.ACKS_ALL)
                written, refused = written + (code == 0), refused + (code != 0)
            assert refused == 0 and written > 0, f"{refused} of {written + refused} were refused in the outage"
            assert leader.is_ready and leader.end() == 0

            cluster.pause(follower)
            refused_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            eventually(lambda: leader.end() == refused_code, BOUND_S, "the leader answers no ListOffsets")
            assert leader.produce(pb.ACKS_LEADER) == refused_code
            assert leader.fetch_beyond_the_end() == refused_code
            eventually(lambda: not leader.is_ready, BOUND_S, "the leader is not ready")

            cluster.resume(follower)
            eventually(lambda: leader.produce(pb.ACKS_ALL) == 0, LONG_S, "the follower's fetches prove the leadership")
            eventually(lambda: leader.is_ready, LONG_S, "the leader is ready")
            cluster.resume(cluster.controller(0))
            resume(cluster.zookeeper)
    finally:
        if cluster.zookeeper is not None:
            resume(cluster.zookeeper)
        cluster.stop()
