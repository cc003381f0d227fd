"""Model values survive the wire, and hostile messages are refused with typed errors."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.internal.v1 import controller_service_pb2 as controller_pb
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.internal.v1 import replication_service_pb2 as replica_pb
from paceline.model import client_io, control, replica_fetch
from paceline.model.admin import ElectionResult, ReplicaDescription
from paceline.model.client_io import OffsetKind, RequiredAcks
from paceline.model.errors import ErrorCode, InvalidRequestError, InvalidRequiredAcksError, InvalidTopicError
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.rpc.convert import common, digest, failures, fetch, offsets, partition_replicas, produce, replica
from paceline.rpc.convert import control as convert
from paceline.rpc.convert.common import broker_ids, message_of
from paceline.v1 import admin_service_pb2 as admin_pb
from paceline.v1 import log_service_pb2 as log_pb
from tests.support import reverse_conversions

INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(-1, 2**63 - 1)
BROKERS = st.lists(INT32, max_size=5, unique=True).map(tuple)
TOPIC_IDS = st.none() | st.text("abcXYZ019-_", min_size=22, max_size=22)
PARTITIONS = st.builds(TopicPartition, st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True), INT32)
CODES = st.sampled_from(list(ErrorCode))
ENDPOINTS = st.builds(
    control.Endpoint, st.sampled_from(["CLIENT", "CONTROL"]), st.just("broker-1.example"), st.integers(1, 65_535)
)
LIVE_BROKERS = st.builds(
    control.LiveBroker,
    INT32,
    st.lists(ENDPOINTS, max_size=4).map(tuple),
    st.none() | st.text(min_size=1, max_size=5),
    INT64,
)
STAMPS = st.builds(control.ControllerStamp, INT32, st.integers(1, 2**31 - 1), st.none() | INT64)
EPOCH_ENDS = st.none() | st.builds(replica_fetch.EpochEnd, INT32, INT64)


def distinct(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=4, unique_by=lambda value: value.topic_partition)


def frozen(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return distinct(values).map(tuple)


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


LEADER_AND_ISR = st.builds(
    control.LeaderAndIsrRequest,
    STAMPS,
    st.lists(LIVE_BROKERS, max_size=3).map(tuple),
    frozen(
        st.builds(
            control.LeaderAndIsrPartition,
            PARTITIONS,
            TOPIC_IDS,
            INT32,
            st.integers(-1, 2**31 - 1),
            INT32,
            BROKERS,
            st.integers(-1, 2**31 - 1),
            BROKERS,
            BROKERS,
            BROKERS,
            st.booleans(),
        )
    ),
)
STOP_REPLICA = st.builds(
    control.StopReplicaRequest,
    STAMPS,
    frozen(st.builds(control.StopReplicaPartition, PARTITIONS, TOPIC_IDS, st.integers(-2, 9), st.booleans())),
)
UPDATE_METADATA = st.builds(
    control.UpdateMetadataRequest,
    STAMPS,
    st.lists(LIVE_BROKERS, max_size=3).map(tuple),
    frozen(
        st.builds(
            control.UpdateMetadataPartition,
            PARTITIONS,
            TOPIC_IDS,
            INT32,
            st.integers(-2, 9),
            INT32,
            BROKERS,
            INT32,
            BROKERS,
            BROKERS,
        )
    ),
    st.lists(ENDPOINTS, max_size=3).map(tuple),
)


@given(LEADER_AND_ISR)
def test_leader_and_isr_survives_the_wire(request: control.LeaderAndIsrRequest) -> None:
    assert convert.leader_and_isr_from_proto(over_the_wire(convert.leader_and_isr_to_proto(request))) == request


@given(STOP_REPLICA)
def test_stop_replica_survives_the_wire(request: control.StopReplicaRequest) -> None:
    assert convert.stop_replica_from_proto(over_the_wire(convert.stop_replica_to_proto(request))) == request


@given(UPDATE_METADATA)
def test_update_metadata_survives_the_wire(request: control.UpdateMetadataRequest) -> None:
    assert convert.update_metadata_from_proto(over_the_wire(convert.update_metadata_to_proto(request))) == request


@given(st.builds(control.ControlResponse, CODES, st.dictionaries(PARTITIONS, CODES, max_size=4)))
def test_control_responses_survive_the_wire(response: control.ControlResponse) -> None:
    for to_proto in (
        convert.leader_and_isr_response_to_proto,
        convert.stop_replica_response_to_proto,
    ):
        assert convert.control_response_from_proto(over_the_wire(to_proto(response))) == response
    metadata = over_the_wire(convert.update_metadata_response_to_proto(response))
    assert convert.control_response_from_proto(metadata) == control.ControlResponse(response.error)


@given(PARTITIONS, TOPIC_IDS)
def test_topic_ids_of_logs_survive_the_wire(partition: TopicPartition, topic_id: str | None) -> None:
    ids = {} if topic_id is None else {partition: topic_id}
    response = control.ControlResponse(partition_errors={partition: ErrorCode.NONE}, topic_ids=ids)
    message = over_the_wire(convert.leader_and_isr_response_to_proto(response))
    assert convert.control_response_from_proto(message) == response


@given(st.builds(control.BrokerHeartbeatResponse, CODES, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)))
def test_a_heartbeat_survives_the_wire(response: control.BrokerHeartbeatResponse) -> None:
    request = control.BrokerHeartbeatRequest(3, 77, (1,), (1, 2), (4, 5), False)
    assert convert.broker_heartbeat_from_proto(message_of(controller_pb.BrokerHeartbeatRequest, request)) == request
    message = over_the_wire(convert.broker_heartbeat_response_to_proto(response))
    assert convert.broker_heartbeat_response_from_proto(message) == response


@given(st.builds(control.ControlledShutdownResponse, CODES, st.lists(PARTITIONS, max_size=4).map(tuple)))
def test_controlled_shutdown_survives_the_wire(response: control.ControlledShutdownResponse) -> None:
    request = control.ControlledShutdownRequest(3, 77)
    encoded = message_of(controller_pb.ControlledShutdownRequest, request)
    assert convert.controlled_shutdown_from_proto(encoded) == request
    message = over_the_wire(convert.controlled_shutdown_response_to_proto(response))
    assert convert.controlled_shutdown_response_from_proto(message) == response


REPLICA_FETCH = st.builds(
    replica_fetch.ReplicaFetchRequest,
    INT32,
    INT64,
    st.integers(0, 60_000),
    INT32,
    INT32,
    INT32,
    st.integers(-1, 2**31 - 1),
    distinct(st.builds(FetchPosition, PARTITIONS, TOPIC_IDS, INT64, INT32, INT32, st.none() | INT32, INT64)),
    st.lists(PARTITIONS, max_size=3),
)
REPLICA_RESPONSE = st.builds(
    replica_fetch.ReplicaFetchResponse,
    INT32,
    st.lists(
        st.builds(
            replica_fetch.ReplicaFetchResult,
            PARTITIONS,
            CODES,
            st.integers(-1, 9),
            INT64,
            INT64,
            INT64,
            EPOCH_ENDS,
            st.binary(max_size=40),
        ),
        max_size=4,
    ),
    CODES,
)


@given(REPLICA_FETCH)
def test_a_replica_fetch_survives_the_wire(request: replica_fetch.ReplicaFetchRequest) -> None:
    assert replica.replica_fetch_from_proto(over_the_wire(replica.replica_fetch_to_proto(request))) == request


@given(REPLICA_RESPONSE)
def test_a_replica_fetch_answer_survives_the_wire(response: replica_fetch.ReplicaFetchResponse) -> None:
    message = over_the_wire(reverse_conversions.replica_fetch_response_to_proto(response))
    assert reverse_conversions.replica_fetch_response_from_proto(message) == response


FAILURES = st.none() | st.builds(
    client_io.PartitionFailure,
    st.sampled_from([code for code in ErrorCode if code]),
    st.text(min_size=1, max_size=9),
    st.none() | st.builds(client_io.LeaderHint, INT32, INT32, st.none() | st.just("id")),
    st.none() | INT64,
    st.none() | INT64,
)


@given(
    st.builds(
        client_io.FetchRequest,
        st.integers(0, 60_000),
        INT32,
        st.integers(1, 2**31 - 1),
        distinct(
            st.builds(
                FetchPosition,
                PARTITIONS,
                TOPIC_IDS,
                INT64,
                st.integers(1, 2**31 - 1),
                st.none() | INT32,
                st.none() | INT32,
            )
        ),
        INT32,
        st.integers(-1, 2**31 - 1),
        st.lists(PARTITIONS, max_size=3),
    )
)
def test_a_client_fetch_survives_the_wire(request: client_io.FetchRequest) -> None:
    assert fetch.fetch_from_proto(over_the_wire(reverse_conversions.fetch_to_proto(request))) == request


@given(st.builds(client_io.FetchResult, PARTITIONS, FAILURES, INT64, INT64, INT64, EPOCH_ENDS, st.binary(max_size=40)))
def test_a_client_fetch_result_survives_the_wire(result: client_io.FetchResult) -> None:
    assert reverse_conversions.fetch_result_from_proto(over_the_wire(fetch.fetch_result_to_proto(result))) == result


@given(
    distinct(
        st.builds(
            client_io.OffsetQuery, PARTITIONS, st.sampled_from([OffsetKind.LATEST, OffsetKind.EARLIEST]), st.just(-1)
        )
        | st.builds(
            client_io.OffsetQuery,
            PARTITIONS,
            st.just(OffsetKind.TIMESTAMP),
            st.integers(0, 2**63 - 1),
            st.none() | INT32,
        )
    )
)
def test_list_offsets_survives_the_wire(queries: list[client_io.OffsetQuery]) -> None:
    message = over_the_wire(reverse_conversions.list_offsets_to_proto(queries))
    assert offsets.list_offsets_from_proto(message) == queries


@given(st.builds(client_io.OffsetAnswer, PARTITIONS, FAILURES, st.none() | INT64, st.none() | INT64, INT32))
def test_an_offset_answer_survives_the_wire(answer: client_io.OffsetAnswer) -> None:
    assert reverse_conversions.offset_answer_from_proto(over_the_wire(offsets.offset_answer_to_proto(answer))) == answer


@given(st.builds(client_io.EpochAnswer, PARTITIONS, FAILURES, EPOCH_ENDS))
def test_an_epoch_answer_survives_the_wire(answer: client_io.EpochAnswer) -> None:
    assert reverse_conversions.epoch_answer_from_proto(over_the_wire(offsets.epoch_answer_to_proto(answer))) == answer


@given(
    st.builds(
        client_io.PartitionReplicasView,
        PARTITIONS,
        st.none(),
        INT32,
        INT32,
        INT64,
        INT64,
        INT64,
        BROKERS,
        BROKERS,
        st.lists(
            st.builds(
                ReplicaDescription,
                INT32,
                st.none() | INT64,
                st.none() | INT64,
                st.none() | INT64,
                st.none() | INT64,
                st.booleans(),
            ),
            max_size=3,
        ).map(tuple),
    )
)
def test_a_leaders_view_of_its_replicas_survives_the_wire(view: client_io.PartitionReplicasView) -> None:
    message = over_the_wire(partition_replicas.partition_replicas_to_proto(view))
    assert reverse_conversions.partition_replicas_from_proto(message) == view


def test_a_leader_hint_has_the_address_for_the_listener_of_the_request() -> None:
    failure = client_io.PartitionFailure(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved", client_io.LeaderHint(2, 8))
    message = failures.failure_to_proto(failure, lambda broker: control.Endpoint("EXTERNAL", "host", 19_000 + broker))
    assert (message.current_leader.host, message.current_leader.port) == ("host", 19_002)
    result = log_pb.ProducePartitionResult(error=message)
    assert reverse_conversions.leader_address_from_proto(result) == ("host", 19_002)
    assert reverse_conversions.leader_address_from_proto(log_pb.ProducePartitionResult()) is None


def test_missing_acks_mean_all() -> None:
    assert produce.acks_from_proto(log_pb.ACKS_UNSPECIFIED) is RequiredAcks.ALL
    assert produce.acks_from_proto(log_pb.ACKS_NONE) is RequiredAcks.NONE
    assert produce.acks_from_proto(log_pb.ACKS_LEADER) is RequiredAcks.LEADER


@pytest.mark.parametrize("number", [-1, 4, 99])
def test_unknown_acks_are_refused_with_their_own_code(number: int) -> None:
    with pytest.raises(InvalidRequiredAcksError):
        produce.acks_from_proto(number)


def test_missing_sizes_and_waits_get_their_documented_defaults() -> None:
    request = fetch.fetch_from_proto(
        log_pb.FetchRequest(max_wait_ms=31_536_000, partitions=[log_pb.FetchPartition(topic="t")])
    )
    assert (request.max_wait_ms, request.max_bytes, request.partitions[0].max_bytes) == (60_000, 1 << 20, 1 << 20)
    assert produce.timeout_from_proto(0) == 30_000


def test_a_fetch_contains_the_rack_of_its_caller() -> None:
    request = fetch.fetch_from_proto(log_pb.FetchRequest(rack_id="r1"))
    assert (request.rack, reverse_conversions.fetch_to_proto(request).rack_id) == ("r1", "r1")


def fetch_of(**fields: Any) -> log_pb.FetchRequest:
    return log_pb.FetchRequest(partitions=[log_pb.FetchPartition(**{"topic": "t", **fields})])


def test_a_fetch_opens_a_session_only_on_request() -> None:
    plain, opening = log_pb.FetchRequest(), log_pb.FetchRequest(open_session=True)
    epochs = [fetch.fetch_from_proto(message).session_epoch for message in (plain, opening)]
    assert epochs == [fetch.CLOSING_EPOCH, fetch.OPENING_EPOCH]
    for message in (plain, opening, log_pb.FetchRequest(session_id=7, session_epoch=3)):
        sent = reverse_conversions.fetch_to_proto(fetch.fetch_from_proto(message))
        assert (sent.session_id, sent.session_epoch, sent.open_session) == (
            message.session_id,
            message.session_epoch,
            message.open_session,
        )


@pytest.mark.parametrize(
    "message",
    [
        fetch_of(partition=-1),
        fetch_of(max_bytes=-1),
        fetch_of(topic_id="short"),
        log_pb.FetchRequest(max_wait_ms=-1),
        log_pb.FetchRequest(min_bytes=-1),
        log_pb.FetchRequest(session_epoch=-1),
        log_pb.FetchRequest(session_epoch=1, open_session=True),
        log_pb.FetchRequest(isolation_level=7),  # type: ignore[arg-type]
        log_pb.FetchRequest(rack_id="r" * 257),
        log_pb.FetchRequest(partitions=[log_pb.FetchPartition(topic="t")] * 2),
        log_pb.FetchRequest(
            partitions=[log_pb.FetchPartition(topic="t", partition=n) for n in range(common.MAX_CLIENT_PARTITIONS + 1)]
        ),
    ],
)
def test_hostile_fetches_are_refused(message: log_pb.FetchRequest) -> None:
    with pytest.raises(InvalidRequestError):
        fetch.fetch_from_proto(message)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "x" * 250, "tоpic", "\u202etxt"])
def test_hostile_topic_names_are_refused(topic: str) -> None:
    with pytest.raises(InvalidTopicError):
        fetch.fetch_from_proto(fetch_of(topic=topic))


STAMP = control_pb.ControllerStamp(controller_id=1_000_001, controller_epoch=1)


@pytest.mark.parametrize(
    "message",
    [
        control_pb.LeaderAndIsrRequest(),
        control_pb.LeaderAndIsrRequest(stamp=control_pb.ControllerStamp(controller_id=-5, controller_epoch=1)),
        control_pb.LeaderAndIsrRequest(stamp=control_pb.ControllerStamp(controller_id=5)),
        control_pb.LeaderAndIsrRequest(
            stamp=STAMP, partitions=[control_pb.LeaderAndIsrPartition(topic="t", leader=-2)]
        ),
        control_pb.LeaderAndIsrRequest(
            stamp=STAMP, partitions=[control_pb.LeaderAndIsrPartition(topic="t", isr=[1, 1])]
        ),
        control_pb.LeaderAndIsrRequest(
            stamp=STAMP, partitions=[control_pb.LeaderAndIsrPartition(topic="t", replicas=[1, -1])]
        ),
        control_pb.LeaderAndIsrRequest(
            stamp=STAMP, partitions=[control_pb.LeaderAndIsrPartition(topic="t", leader_epoch=-1)]
        ),
        control_pb.LeaderAndIsrRequest(stamp=STAMP, partitions=[control_pb.LeaderAndIsrPartition(topic="t")] * 2),
        control_pb.LeaderAndIsrRequest(
            stamp=STAMP,
            live_leaders=[
                control_pb.LiveBroker(id=1, endpoints=[control_pb.BrokerEndpoint(listener="CLIENT", port=1)])
            ],
        ),
    ],
)
def test_hostile_leader_and_isr_requests_are_refused(message: control_pb.LeaderAndIsrRequest) -> None:
    with pytest.raises(InvalidRequestError):
        convert.leader_and_isr_from_proto(message)


@pytest.mark.parametrize(
    "message",
    [
        replica_pb.FetchRequest(replica_id=-1),
        replica_pb.FetchRequest(broker_epoch=-2),
        replica_pb.FetchRequest(partitions=[replica_pb.FetchPartition(topic="t", current_leader_epoch=-1)]),
        replica_pb.FetchRequest(partitions=[replica_pb.FetchPartition(topic="t")] * 2),
    ],
)
def test_hostile_replica_fetches_are_refused(message: replica_pb.FetchRequest) -> None:
    with pytest.raises(InvalidRequestError):
        replica.replica_fetch_from_proto(message)


def test_an_unknown_error_code_is_a_failure() -> None:
    for number in (0, 424_242):
        result = control_pb.ControlPartitionResult(topic="t", error=number)  # type: ignore[arg-type]
        assert common.error_code_of(over_the_wire(result)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert common.error_code_of(control_pb.ControlPartitionResult(topic="t")) is ErrorCode.NONE


def test_an_invalid_replica_list_is_refused_every_time_and_a_valid_one_is_shared() -> None:
    for _ in range(2):
        for bad in ([1, 1], [2, -1]):
            with pytest.raises(InvalidRequestError):
                broker_ids(bad, "the assignment")
    assert broker_ids([71, 72, 73], "the assignment") is broker_ids([71, 72, 73], "the in-sync set")


def test_a_digest_answer_keeps_its_values_without_the_partition_that_the_caller_named() -> None:
    found = client_io.RangeDigest(3, 9, 7, 80, [1, 2], 5, 6, 10, 2, 12, 11)
    answer = client_io.DigestAnswer(TopicPartition("rides", 1), None, found)
    message = digest.digest_answer_to_proto(answer)
    values = {
        name: getattr(message, name) for name in ("first_offset", "last_offset", "record_count", "high_watermark")
    }
    assert values == {"first_offset": 3, "last_offset": 9, "record_count": 7, "high_watermark": 11}
    assert list(message.leader_epochs) == [1, 2] and not message.HasField("error")


@given(st.builds(ElectionResult, PARTITIONS, st.none(), st.none() | INT32, st.none() | INT32, st.booleans()))
def test_a_plain_value_is_filled_from_a_message_by_the_names_of_its_fields(result: ElectionResult) -> None:
    message = over_the_wire(common.message_of(admin_pb.ElectLeaderResult, result))
    assert common.value_of(ElectionResult, message, error=None) == result
