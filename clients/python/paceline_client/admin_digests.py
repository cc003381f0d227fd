"""The part of `Admin` that reads digests of stored records, with which replicas are compared without copying them."""

from typing import Final

import grpc

from paceline.model.client_io import RangeDigest
from paceline.model.errors import error_for
from paceline.rpc.convert.common import value_of
from paceline.v1.log_service_pb2 import DigestRangeRequest
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline_client.admin_connection import AdminConnection, named
from paceline_client.errors import sendable
from paceline_client.metadata import Broker

_TIMEOUT_MS: Final = 30_000


class DigestAdmin(AdminConnection):
    """Digests of stored records; use `Admin`."""

    def digest_range(
        self,
        broker: Broker,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        topic_id: str = "",
        timeout_ms: int = _TIMEOUT_MS,
    ) -> RangeDigest:
        """Return the digest of the records that a broker has stored from offset ``start`` up to ``end``, exclusive.

        An empty range gives the offsets of the replica's log. The broker reads at most 4 MiB.

        Args:
            broker: leader or follower, from `describe_cluster`.
            topic: the topic.
            partition: the partition.
            start: batches that begin below it are left out.
            end: batches that extend past it are left out; compare replicas below the smallest high watermark.
            topic_id: refuse a topic with another id; empty accepts the topic that has the name at present.
            timeout_ms: longest wait.

        Raises:
            CorruptMessageError: stored bytes do not match their checksum.
            ReplicaNotAvailableError, UnknownTopicOrPartitionError: the broker has no such replica.
            PacelineError: the broker does not answer. The call is not repeated.
        """
        with sendable():
            request = DigestRangeRequest(
                topic=topic, partition=partition, topic_id=topic_id, start_offset=start, end_offset=end
            )
        try:
            answer = LogServiceStub(self._channel(broker.address)).DigestRange(request, timeout=timeout_ms / 1000)
        except grpc.RpcError as failure:
            raise named(str(broker), failure) from failure
        if answer.HasField("error"):
            raise error_for(answer.error.code, f"{broker}: {answer.error.message}")
        return value_of(RangeDigest, answer, leader_epochs=list(answer.leader_epochs))
