"""Observe the cluster: request the replica states from each broker directly; a broker may fail to answer."""

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from paceline.v1 import metadata_service_pb2 as metadata_pb
from paceline.v1 import metadata_service_pb2_grpc as metadata_grpc

_POLL_SECONDS = 0.5
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition as its leader describes it."""

    partition: int
    leader: int
    leader_epoch: int
    isr: frozenset[int]
    log_end_offset: dict[int, int]
    """Log end offset by replica; omits replicas whose log end offset the leader does not know."""
    last_caught_up_ago_ms: dict[int, int]
    """Time since a replica had caught up, by replica; omits replicas whose time the leader does not know."""


class ClusterObserver:
    """Asks each broker for the partitions that it leads. For use by one thread; close it after use."""

    def __init__(self, addresses: Mapping[int, str]) -> None:
        self._channels = {
            broker: grpc.insecure_channel(address, options=_OPTIONS) for broker, address in addresses.items()
        }
        self._stubs = {broker: metadata_grpc.MetadataServiceStub(channel) for broker, channel in self._channels.items()}

    def led_by(self, broker: int, topic: str) -> dict[int, PartitionView]:
        """Return the partitions of a topic that a broker reports to lead; empty when the broker does not answer."""
        try:
            answer = self._stubs[broker].DescribeReplicas(
                metadata_pb.DescribeReplicasRequest(topic=topic), timeout=_POLL_SECONDS
            )
        except grpc.RpcError:
            return {}
        return {
            found.partition: PartitionView(
                partition=found.partition,
                leader=found.leader,
                leader_epoch=found.leader_epoch,
                isr=frozenset(found.isr),
                log_end_offset={
                    replica.broker_id: replica.log_end_offset
                    for replica in found.replicas
                    if replica.HasField("log_end_offset")
                },
                last_caught_up_ago_ms={
                    replica.broker_id: replica.last_caught_up_ago_ms
                    for replica in found.replicas
                    if replica.HasField("last_caught_up_ago_ms")
                },
            )
            for found in answer.partitions
            if not found.HasField("error") and found.leader == broker
        }

    def leaders(self, topic: str, without: frozenset[int] = frozenset()) -> dict[int, PartitionView]:
        """Return each partition as its leader describes it; if two brokers claim to lead, the higher epoch wins.

        Brokers in ``without`` are not asked.
        """
        views: dict[int, PartitionView] = {}
        for broker in sorted(self._stubs):
            if broker in without:
                continue
            for partition, view in self.led_by(broker, topic).items():
                if partition not in views or view.leader_epoch > views[partition].leader_epoch:
                    views[partition] = view
        return views

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            channel.close()
