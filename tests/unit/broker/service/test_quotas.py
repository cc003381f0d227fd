"""Produce and Fetch above a quota: the whole answer at once, with throttle_ms, and smaller fetches."""

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.model.quotas import CONSUMER, PRODUCER, ClientQuotas, QuotaEntity
from paceline.rpc.admission.caller_quota import CallerQuota
from paceline.rpc.security.authorizer import Mode, acting_as
from paceline.v1 import log_service_pb2 as pb
from paceline_client.wire import decode_fetch_answer
from tests.support.broker_cluster import TP, batch
from tests.unit.broker.service.test_access import Served

WITHOUT_METADATA: Any = SimpleNamespace(invocation_metadata=lambda: ())


class Limited(Served):
    """A broker whose caller has quotas; the clock stands still."""

    def __init__(self, **values: float) -> None:
        super().__init__(Mode.OFF)
        self.quotas = ClientQuotas()
        self.quotas.use({QuotaEntity("alice"): values})

    def act(self, method: str) -> Any:
        self.call.exempt = self.authorizer.exemption("User:broker/1")
        self.call.quota = CallerQuota(
            self.quotas, "User:alice", WITHOUT_METADATA, f"/paceline.v1.LogService/{method}", lambda: 0.0
        )
        return acting_as(self.call)

    async def write(self, value: bytes, acks: Any = pb.ACKS_ALL) -> pb.ProduceResponse:
        request = pb.ProduceRequest(acks=acks, timeout_ms=1_000)
        request.partitions.add(topic=TP.topic, partition=TP.partition, batch=batch(value))
        with self.act("Produce"):
            return pb.ProduceResponse.FromString(await self.servicer.produce(request.SerializeToString(), self.context))

    async def read(self, offset: int = 0, **more: Any) -> bytes:
        request = pb.FetchRequest(max_bytes=1 << 20, **more)
        request.partitions.add(topic=TP.topic, partition=TP.partition, max_bytes=1 << 20, fetch_offset=offset)
        with self.act("Fetch"):
            data: bytes = await self.servicer.fetch(request.SerializeToString(), self.context)
            return data


@pytest.mark.parametrize("acks", [pb.ACKS_ALL, pb.ACKS_NONE])
async def test_a_write_above_the_quota_is_made_and_answered_with_its_pause(acks: Any) -> None:
    served = Limited(**{PRODUCER: 1_000.0})
    assert (await served.write(b"x" * 9_000)).throttle_ms == 0
    answer = await served.write(b"y" * 3_000, acks)
    assert answer.throttle_ms == pytest.approx(2_200, abs=200)
    assert len(answer.partitions) == (acks == pb.ACKS_ALL) and not any(
        one.HasField("error") for one in answer.partitions
    )
    assert served.cluster[1].values() == [b"first", b"x" * 9_000, b"y" * 3_000]


@pytest.mark.parametrize("format_", [pb.FETCH_FORMAT_BATCHES, pb.FETCH_FORMAT_RECORDS])
async def test_a_read_above_the_quota_has_its_records_and_its_pause(format_: Any) -> None:
    served = Limited(**{CONSUMER: 100.0})
    served.cluster[1].produce(b"z" * 2_000)
    data = await served.read(1, format=format_)
    answer = pb.FetchResponse.FromString(data)
    assert answer.throttle_ms == pytest.approx((len(data) - 1_000) * 10, abs=200)
    assert b"z" * 2_000 in data and answer.session_id == 0
    if format_ == pb.FETCH_FORMAT_BATCHES:
        parsed = decode_fetch_answer(data)
        assert parsed.throttle_ms == answer.throttle_ms and parsed.partitions[0].batches == answer.partitions[0].batches


async def test_a_fetch_returns_no_more_than_the_quota_allows_at_once() -> None:
    served = Limited(**{CONSUMER: 100.0})
    for _ in range(20):
        served.cluster[1].produce(b"z" * 200)
    assert len(await served.read(format=pb.FETCH_FORMAT_BATCHES)) < 1_500
