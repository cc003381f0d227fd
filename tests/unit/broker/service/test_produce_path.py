"""The files that a Produce request enters on its way to the log, against docs/architecture.md."""

import re
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from paceline.broker.service.calls_in_progress import ByteBudget, FetchWaits
from paceline.broker.service.log_servicer import LogServicer
from paceline.broker.service.node_handle import NodeHandle
from paceline.broker.service.record_codec import RecordCodec
from paceline.broker.service.response_memory import AnswerBudget
from paceline.rpc.admission.listener_limits import ListenerLimits
from paceline.v1 import log_service_pb2 as pb
from tests.support.broker_cluster import TP, BrokerCluster, batch

ROOT = Path(__file__).resolve().parents[4]
BROKER = f"{ROOT}/services/paceline/broker/"


async def files_entered() -> list[str]:
    """Return the files of the broker that calls enter until the append, a file once for calls that follow each other.

    Comprehensions and lambdas do not count: they stand in the function that a reader has open.
    """
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), is_new=True)
    cluster[1].produce(b"first")
    handle = NodeHandle()
    handle.set(cluster[1].node)
    budget, answers = ByteBudget(1 << 20), AnswerBudget(1 << 20)
    servicer = LogServicer(
        handle, "CLIENT", cluster.time, budget, answers, 1 << 20, RecordCodec(), FetchWaits(1), ListenerLimits()
    )
    request = pb.ProduceRequest(acks=pb.ACKS_ALL, timeout_ms=30_000)
    request.partitions.add(topic=TP.topic, partition=TP.partition, batch=batch(b"a"))
    context: Any = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1", time_remaining=lambda: None)
    entered: list[str] = []

    def call(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "append_as_leader" and "/log/" in code.co_filename:
            sys.setprofile(None)
        elif event == "call" and code.co_filename.startswith(BROKER) and not code.co_name.startswith("<"):
            name = code.co_filename.removeprefix(BROKER)
            if entered[-1:] != [name]:
                entered.append(name)

    sys.setprofile(call)
    try:
        await servicer.produce(request.SerializeToString(), context)
    finally:
        sys.setprofile(None)
    assert cluster[1].values() == [b"first", b"a"]
    return entered


async def test_a_produce_takes_the_documented_way_and_returns_to_few_files() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## The way of a Produce")[2].partition("\n## ")[0]
    entered = await files_entered()
    assert entered == re.findall(r"^\d+\. `([^`]+)`", section, flags=re.MULTILINE)
    assert len(entered) - len(set(entered)) <= 3
