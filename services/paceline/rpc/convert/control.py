"""Control requests and their responses: `model.control` <-> ``paceline.internal.v1``."""

from typing import Any

from paceline.internal.v1 import controller_service_pb2 as controller_pb
from paceline.internal.v1 import replica_manager_service_pb2 as pb
from paceline.model.control import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControllerStamp,
    ControlResponse,
    Endpoint,
    InternalTopic,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LiveBroker,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from paceline.model.errors import InvalidRequestError
from paceline.model.identifiers import INTERNAL_TOPICS, LEADER_DURING_DELETE, NO_LEADER, TopicPartition
from paceline.rpc.convert.common import (
    MAX_BROKERS,
    MAX_INTERNAL_PARTITIONS,
    TOPIC_ID_LENGTH,
    at_least,
    bounded,
    broker_ids,
    code_to_proto,
    error_code_of,
    message_of,
    partition_of,
    refuse_duplicates,
    topic_id_of,
)
from paceline.v1 import metadata_service_pb2 as metadata_pb

_MAX_ENDPOINTS = 16
_EPOCH_FLOOR = -2


def endpoint_from_proto(message: pb.BrokerEndpoint) -> Endpoint:
    """Decode the endpoint of a broker.

    Raises:
        InvalidRequestError: listener or host is missing, or the port is out of range.
    """
    if not message.listener or not message.host or not 0 < message.port < 65_536:
        raise InvalidRequestError(f"{message.listener!r} {message.host!r}:{message.port} is not an endpoint")
    return Endpoint(message.listener, message.host, message.port)


def live_broker_to_proto(broker: LiveBroker) -> pb.LiveBroker:
    endpoints = [message_of(pb.BrokerEndpoint, endpoint) for endpoint in broker.endpoints]
    return message_of(pb.LiveBroker, broker, id=broker.broker_id, endpoints=endpoints)


def live_broker_from_proto(message: pb.LiveBroker) -> LiveBroker:
    """Decode a live broker.

    Raises:
        InvalidRequestError: the broker id is negative or an endpoint is invalid.
    """
    return LiveBroker(
        broker_id=at_least(message.id, 0, "broker id"),
        endpoints=tuple(
            endpoint_from_proto(endpoint) for endpoint in bounded(message.endpoints, _MAX_ENDPOINTS, "endpoints")
        ),
        rack=message.rack or None,
        broker_epoch=at_least(message.broker_epoch, -1, "broker epoch"),
    )


def broker_info_to_proto(broker: LiveBroker, listener: str) -> metadata_pb.BrokerInfo:
    """Encode a live broker for clients, with its address on ``listener``, otherwise its CLIENT address."""
    endpoint = broker.endpoint(listener) or broker.endpoint("CLIENT")
    return metadata_pb.BrokerInfo(
        id=broker.broker_id,
        host=endpoint.host if endpoint else "",
        port=endpoint.port if endpoint else 0,
        rack=broker.rack or "",
    )


def stamp_from_proto(message: Any) -> ControllerStamp:
    """Decode the controller id, controller epoch and broker epoch of a control request.

    Raises:
        InvalidRequestError: the stamp is missing, or a number is out of range.
    """
    if not message.HasField("stamp"):
        raise InvalidRequestError("a control request needs a stamp")
    stamp = message.stamp
    return ControllerStamp(
        controller_id=at_least(stamp.controller_id, 0, "controller id"),
        controller_epoch=at_least(stamp.controller_epoch, 1, "controller epoch"),
        broker_epoch=at_least(stamp.broker_epoch, -1, "broker epoch") if stamp.HasField("broker_epoch") else None,
    )


def leader_and_isr_to_proto(request: LeaderAndIsrRequest) -> pb.LeaderAndIsrRequest:
    return pb.LeaderAndIsrRequest(
        stamp=message_of(pb.ControllerStamp, request.stamp),
        live_leaders=[live_broker_to_proto(broker) for broker in request.live_leaders],
        partitions=[message_of(pb.LeaderAndIsrPartition, one) for one in request.partitions],
    )


def leader_and_isr_from_proto(message: pb.LeaderAndIsrRequest) -> LeaderAndIsrRequest:
    """Decode the request.

    Raises:
        InvalidRequestError: the stamp is missing, a partition is listed twice, or a number is out of range.
        InvalidTopicError: a topic name is invalid.
    """
    partitions = tuple(
        LeaderAndIsrPartition(
            topic_partition=partition_of(one),
            topic_id=topic_id_of(one.topic_id),
            controller_epoch=at_least(one.controller_epoch, 0, "controller epoch"),
            leader=at_least(one.leader, NO_LEADER, "leader"),
            leader_epoch=at_least(one.leader_epoch, 0, "leader epoch"),
            isr=broker_ids(one.isr, "the in-sync set"),
            zk_version=at_least(one.zk_version, -1, "zk version"),
            replicas=broker_ids(one.replicas, "the assignment"),
            adding_replicas=broker_ids(one.adding_replicas, "the adding replicas") if one.adding_replicas else (),
            removing_replicas=broker_ids(one.removing_replicas, "the removing replicas")
            if one.removing_replicas
            else (),
            is_new=one.is_new,
        )
        for one in bounded(message.partitions, MAX_INTERNAL_PARTITIONS, "partitions")
    )
    refuse_duplicates([one.topic_partition for one in partitions])
    live_leaders = bounded(message.live_leaders, MAX_BROKERS, "brokers")
    return LeaderAndIsrRequest(
        stamp_from_proto(message), tuple(live_broker_from_proto(one) for one in live_leaders), partitions
    )


def stop_replica_to_proto(request: StopReplicaRequest) -> pb.StopReplicaRequest:
    return pb.StopReplicaRequest(
        stamp=message_of(pb.ControllerStamp, request.stamp),
        partitions=[message_of(pb.StopReplicaPartition, one) for one in request.partitions],
    )


def stop_replica_from_proto(message: pb.StopReplicaRequest) -> StopReplicaRequest:
    """Decode the request.

    Raises:
        InvalidRequestError: the stamp is missing, a partition is listed twice, or a number is out of range.
        InvalidTopicError: a topic name is invalid.
    """
    partitions = tuple(
        StopReplicaPartition(
            topic_partition=partition_of(one),
            topic_id=topic_id_of(one.topic_id),
            leader_epoch=at_least(one.leader_epoch, _EPOCH_FLOOR, "leader epoch"),
            delete_partition=one.delete_partition,
        )
        for one in bounded(message.partitions, MAX_INTERNAL_PARTITIONS, "partitions")
    )
    refuse_duplicates([one.topic_partition for one in partitions])
    return StopReplicaRequest(stamp_from_proto(message), partitions)


def update_metadata_to_proto(request: UpdateMetadataRequest) -> pb.UpdateMetadataRequest:
    return pb.UpdateMetadataRequest(
        stamp=message_of(pb.ControllerStamp, request.stamp),
        live_brokers=[live_broker_to_proto(broker) for broker in request.live_brokers],
        partitions=[message_of(pb.UpdateMetadataPartition, one) for one in request.partitions],
        controller_endpoints=[message_of(pb.BrokerEndpoint, endpoint) for endpoint in request.controller_endpoints],
        is_initial=request.is_initial,
        sequence=request.sequence,
    )


def update_metadata_from_proto(message: pb.UpdateMetadataRequest) -> UpdateMetadataRequest:
    """Decode the request.

    Raises:
        InvalidRequestError: the stamp is missing, a partition is listed twice, or a number is out of range.
        InvalidTopicError: a topic name is invalid.
    """
    partitions = tuple(
        UpdateMetadataPartition(
            topic_partition=partition_of(one),
            topic_id=topic_id_of(one.topic_id),
            controller_epoch=at_least(one.controller_epoch, 0, "controller epoch"),
            leader=at_least(one.leader, LEADER_DURING_DELETE, "leader"),
            # A partition that is being deleted or never had a leader may have no leader epoch.
            leader_epoch=at_least(one.leader_epoch, _EPOCH_FLOOR, "leader epoch"),
            isr=broker_ids(one.isr, "the in-sync set"),
            zk_version=at_least(one.zk_version, -1, "zk version"),
            replicas=broker_ids(one.replicas, "the assignment"),
            offline_replicas=broker_ids(one.offline_replicas, "the offline replicas") if one.offline_replicas else (),
        )
        for one in bounded(message.partitions, MAX_INTERNAL_PARTITIONS, "partitions")
    )
    refuse_duplicates([one.topic_partition for one in partitions])
    brokers = bounded(message.live_brokers, MAX_BROKERS, "brokers")
    endpoints = bounded(message.controller_endpoints, _MAX_ENDPOINTS, "endpoints")
    return UpdateMetadataRequest(
        stamp_from_proto(message),
        tuple(live_broker_from_proto(one) for one in brokers),
        partitions,
        tuple(endpoint_from_proto(one) for one in endpoints),
        message.is_initial,
        at_least(message.sequence, 0, "sequence"),
    )


def _results_to_proto(response: ControlResponse) -> list[pb.ControlPartitionResult]:
    return [
        pb.ControlPartitionResult(
            topic=topic,
            partition=partition,
            error=code_to_proto(code),
            topic_id=response.topic_ids.get(TopicPartition(topic, partition), ""),
        )
        for (topic, partition), code in response.partition_errors.items()
    ]


def leader_and_isr_response_to_proto(response: ControlResponse) -> pb.LeaderAndIsrResponse:
    """Encode the response with one result per partition."""
    return pb.LeaderAndIsrResponse(error=code_to_proto(response.error), partitions=_results_to_proto(response))


def stop_replica_response_to_proto(response: ControlResponse) -> pb.StopReplicaResponse:
    """Encode the response with one result per partition."""
    return pb.StopReplicaResponse(error=code_to_proto(response.error), partitions=_results_to_proto(response))


def update_metadata_response_to_proto(response: ControlResponse) -> pb.UpdateMetadataResponse:
    """Encode the response, which has no results per partition."""
    return pb.UpdateMetadataResponse(error=code_to_proto(response.error))


def control_response_from_proto(
    message: pb.LeaderAndIsrResponse | pb.StopReplicaResponse | pb.UpdateMetadataResponse,
) -> ControlResponse:
    """Decode the response to any control request."""
    if isinstance(message, pb.UpdateMetadataResponse):
        return ControlResponse(error_code_of(message))
    return ControlResponse(
        error_code_of(message),
        {TopicPartition(one.topic, one.partition): error_code_of(one) for one in message.partitions},
        {
            TopicPartition(one.topic, one.partition): one.topic_id
            for one in message.partitions
            if len(one.topic_id) == TOPIC_ID_LENGTH
        },
    )


def controlled_shutdown_from_proto(message: controller_pb.ControlledShutdownRequest) -> ControlledShutdownRequest:
    """Decode the request.

    Raises:
        InvalidRequestError: a number is out of range.
    """
    return ControlledShutdownRequest(
        at_least(message.broker_id, 0, "broker id"), at_least(message.broker_epoch, -1, "broker epoch")
    )


def internal_topic_from_proto(message: controller_pb.CreateInternalTopicRequest) -> InternalTopic:
    """Decode the request to create an internal topic.

    Raises:
        InvalidRequestError: the name is not that of an internal topic, or a number is out of range.
    """
    if message.name not in INTERNAL_TOPICS:
        raise InvalidRequestError(f"topic {message.name!r} is not one of the cluster's own")
    return InternalTopic(
        message.name,
        at_least(message.partitions, 1, "number of partitions"),
        at_least(message.replication_factor, 1, "replication factor"),
        dict(sorted(message.configs.items())),  # protobuf iterates over a map in a different order in each process
        at_least(message.broker_id, 0, "broker id"),
    )


def broker_heartbeat_from_proto(message: controller_pb.BrokerHeartbeatRequest) -> BrokerHeartbeatRequest:
    """Decode the request.

    Raises:
        InvalidRequestError: a number is out of range.
    """
    return BrokerHeartbeatRequest(
        at_least(message.broker_id, 0, "broker id"),
        at_least(message.broker_epoch, 0, "broker epoch"),
        tuple(at_least(leader, 0, "broker id") for leader in message.broken_leaders),
        tuple(at_least(leader, 0, "broker id") for leader in message.unreachable_leaders),
        tuple(at_least(leader, 0, "broker id") for leader in message.reached_leaders),
        message.shutting_down if message.HasField("shutting_down") else None,
    )


def broker_heartbeat_response_to_proto(response: BrokerHeartbeatResponse) -> controller_pb.BrokerHeartbeatResponse:
    return message_of(controller_pb.BrokerHeartbeatResponse, response, error=code_to_proto(response.error))


def broker_heartbeat_response_from_proto(message: controller_pb.BrokerHeartbeatResponse) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(error_code_of(message), message.controller_epoch, message.unanswered_ms)


def controlled_shutdown_response_to_proto(
    response: ControlledShutdownResponse,
) -> controller_pb.ControlledShutdownResponse:
    """Encode the response with the remaining partitions."""
    return controller_pb.ControlledShutdownResponse(
        error=code_to_proto(response.error),
        remaining=[
            controller_pb.RemainingPartition(topic=topic, partition=partition)
            for topic, partition in response.remaining
        ],
    )


def controlled_shutdown_response_from_proto(
    message: controller_pb.ControlledShutdownResponse,
) -> ControlledShutdownResponse:
    return ControlledShutdownResponse(
        error_code_of(message), tuple(TopicPartition(one.topic, one.partition) for one in message.remaining)
    )
