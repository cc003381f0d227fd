"""The list of revoked certificates in an in-memory ZooKeeper."""

from typing import Any, TypeVar

import pytest

from paceline.coordination import revoked_certificates
from paceline.coordination.flow import Flow, FlowRun
from paceline.coordination.interface import Create
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.coordination.revoked_certificates import read_revoked, read_serial_numbers, restore, revoke
from paceline.model.errors import InvalidRequestError
from paceline.model.revoked_certificate import RevokedCertificate, serial_number_of
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import Link, MemoryZooKeeper, MemoryZooKeeperServer
from tests.support.zookeeper.recorder import Recorder

T = TypeVar("T")


class World:
    """A connected client."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        server = MemoryZooKeeperServer(self.time)
        self.client = MemoryZooKeeper(server, self.time, session_timeout_ms=6_000, link=Link())
        self.recorder = Recorder(self.client)
        self.time.run_until(lambda: self.client.connected)

    def run(self, flow: Flow[T]) -> T:
        outcome: list[Any] = []
        FlowRun(flow, PatientZooKeeper(self.client), self.time, outcome.append, outcome.append).start()
        self.time.run_until(lambda: bool(outcome))
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("text", "number"),
    [("1f", "1f"), (" 00:1F:a0 ", "1fa0"), ("0x0A", "a"), ("F" * 40, "f" * 40), ("0000" + "f" * 40, "f" * 40)],
)
def test_a_serial_number_has_one_form(text: str, number: str) -> None:
    assert serial_number_of(text) == number


@pytest.mark.parametrize("text", ["", "0", "0x", "xyz", "f" * 41, "1/2", "../x", "1 2", "-1"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="serial number"):
        serial_number_of(text)


def test_certificates_are_revoked_listed_and_restored() -> None:
    world = World()
    assert world.run(read_serial_numbers()) == frozenset() and world.run(read_revoked()) == []
    alice, bob = RevokedCertificate("b2", "User:alice", 1_000), RevokedCertificate("a1")
    for one in (alice, bob, alice._replace(principal="User:other")):
        world.run(revoke(one))
    assert world.run(read_serial_numbers()) == {"a1", "b2"}
    assert world.run(read_revoked()) == [bob, alice], "the first entry stays"
    world.run(restore("b2"))
    with pytest.raises(InvalidRequestError, match="b2 is not revoked"):
        world.run(restore("b2"))
    assert world.run(read_serial_numbers()) == {"a1"}


def test_data_that_does_not_parse_revokes_the_certificate_all_the_same() -> None:
    world = World()
    world.run(revoke(RevokedCertificate("a1")))
    world.recorder.submit(Create("/revoked_certificates/ff", b"{"))
    assert world.run(read_serial_numbers()) == {"a1", "ff"}
    assert world.run(read_revoked()) == [RevokedCertificate("a1"), RevokedCertificate("ff")]


def test_a_full_list_refuses_further_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revoked_certificates, "MAX_REVOKED", 2)
    world = World()
    for number in ("a", "b"):
        world.run(revoke(RevokedCertificate(number)))
    with pytest.raises(InvalidRequestError, match="2 certificates"):
        world.run(revoke(RevokedCertificate("c")))
    assert world.run(read_serial_numbers()) == {"a", "b"}
