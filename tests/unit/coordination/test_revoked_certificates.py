"""The list of revoked certificates in an in-memory ZooKeeper."""

from typing import Any, TypeVar

import pytest

from paceline.coordination import revoked_certificates
from paceline.coordination.flow import Flow, FlowRun
from paceline.coordination.interface import Create
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.coordination.revoked_certificates import read_owners, read_serial_numbers, restore, revoke
from paceline.model.errors import InvalidRequestError
from paceline.model.serial_numbers import serial_number_of
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
    assert world.run(read_serial_numbers()) == frozenset() and world.run(read_owners()) == {}
    for number, principal in (("b2", "User:alicé"), ("a1", ""), ("b2", "User:other")):
        world.run(revoke(number, principal))
    assert world.run(read_serial_numbers()) == {"a1", "b2"}
    assert list(world.run(read_owners()).items()) == [("a1", ""), ("b2", "User:alicé")], "the first entry stays"
    world.run(restore("b2"))
    with pytest.raises(InvalidRequestError, match="b2 is not revoked"):
        world.run(restore("b2"))
    assert world.run(read_serial_numbers()) == {"a1"}


@pytest.mark.parametrize("data", [None, b"\xff"])
def test_a_node_that_others_have_written_revokes_the_certificate_all_the_same(data: bytes | None) -> None:
    world = World()
    world.run(revoke("a1", ""))
    world.recorder.submit(Create("/revoked_certificates/ff", data))
    assert world.run(read_serial_numbers()) == set(world.run(read_owners())) == {"a1", "ff"}


def test_a_full_list_refuses_further_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revoked_certificates, "MAX_REVOKED", 2)
    world = World()
    for number in ("a", "b"):
        world.run(revoke(number, ""))
    with pytest.raises(InvalidRequestError, match="2 certificates"):
        world.run(revoke("c", ""))
    world.run(revoke("b", "User:alice"))
    assert world.run(read_serial_numbers()) == {"a", "b"}
