"""DescribeRevokedCertificates on an in-memory ZooKeeper: its list for callers with and without Describe."""

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.controller.service.acl_servicer import AclServicer
from paceline.controller.service.metadata_servicer import NodeHandle
from paceline.coordination.flow import Flow, FlowRun
from paceline.coordination.interface import GetData
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.coordination.revoked_certificates import revoke
from paceline.model.acls import AccessRules
from paceline.rpc.security.authorizer import Authorizer, Call, Caller, Mode, acting_as
from paceline.v1 import acl_service_pb2 as pb
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import Link, MemoryZooKeeper, MemoryZooKeeperServer
from tests.support.zookeeper.recorder import Recorder


class CountedReads(PatientZooKeeper):
    """Counts the nodes that are read."""

    reads = 0

    def submit(self, requests: Any, done: Any) -> None:
        """Count the reads of data among the requests."""
        self.reads += sum(isinstance(request, GetData) for request in requests)
        super().submit(requests, done)


@pytest.mark.parametrize(("is_super", "owners", "reads"), [(True, ["User:alice", "User:bob"], 2), (False, ["", ""], 0)])
async def test_owners_are_read_for_callers_with_describe_alone(is_super: bool, owners: list[str], reads: int) -> None:
    time = VirtualTime()
    client = MemoryZooKeeper(MemoryZooKeeperServer(time), time, session_timeout_ms=6_000, link=Link())
    Recorder(client)
    time.run_until(lambda: client.connected)
    zookeeper = CountedReads(client)

    async def on_session(flow: Flow[Any], _timeout_s: float) -> Any:
        outcome: list[Any] = []
        FlowRun(flow, zookeeper, time, outcome.append, outcome.append).start()
        time.run_until(lambda: bool(outcome))
        return outcome[0]

    handle = NodeHandle()
    handle.set(SimpleNamespace())  # type: ignore[arg-type]
    handle.on_session = on_session
    await on_session(revoke("a1", "User:alice"), 1.0)
    await on_session(revoke("b2", "User:bob"), 1.0)
    authorizer = Authorizer(Mode.ENFORCE, {"User:admin"})
    authorizer.use(AccessRules({}))
    caller = "User:admin" if is_super else "User:gateway"
    call = Call(Caller(caller), authorizer, exempt=authorizer.exemption(caller))
    context = SimpleNamespace(time_remaining=lambda: None)
    with acting_as(call):
        found = await AclServicer(handle).DescribeRevokedCertificates(pb.DescribeRevokedCertificatesRequest(), context)
    assert [one.serial_number for one in found.certificates] == ["a1", "b2"]
    assert [one.principal for one in found.certificates] == owners
    assert zookeeper.reads == reads
