"""ZooKeeper may grant a shorter session timeout than requested (Z4 of docs/protocol/simulator.md#kazoo-hazards)."""

from pathlib import Path

import pytest

from paceline.coordination.interface import Create, Exists, SessionState, ZkCode
from tests.integration.zookeeper_backends import RealBackend
from tests.support.embedded_zookeeper import embedded_zookeeper

pytestmark = pytest.mark.zookeeper

GRANTED_MS = 4_000
ASKED_MS = 120_000
"""Far longer than any wait in the tests."""


def test_a_client_that_was_granted_a_shorter_session_is_in_doubt_when_that_one_may_have_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with embedded_zookeeper(tmp_path, max_session_timeout_ms=GRANTED_MS) as server:
        backend = RealBackend(server, f"{server.address}/grant")
        try:
            client, other = backend.client(ASKED_MS), backend.client(ASKED_MS)
            backend.ask(client, Create("/mine", ephemeral=True))
            client.cut()
            begin_ms = backend.time.now_ms()
            backend.time.run_until(lambda: backend.ask(other, Exists("/mine"))[0].code is ZkCode.NO_NODE)
            backend.time.run_until(lambda: SessionState.IN_DOUBT in client.recorder.states)
            assert backend.time.now_ms() - begin_ms < ASKED_MS / 2
            client.heal()
            backend.time.run_until(lambda: SessionState.EXPIRED in client.recorder.states)
        finally:
            backend.close()
    assert caplog.text.count("granted_ms=4000 zookeeper.session.timeout.ms=120000") == 2  # once per client


def test_a_client_that_keeps_sending_notices_a_dead_connection_within_the_session_it_was_granted(
    tmp_path: Path,
) -> None:
    with embedded_zookeeper(tmp_path, max_session_timeout_ms=GRANTED_MS) as server:
        backend = RealBackend(server, f"{server.address}/grant")
        try:
            client = backend.client(ASKED_MS)
            client.cut()
            begin_ms = backend.time.now_ms()

            def keep_sending() -> bool:
                client.recorder.submit(Exists("/"))
                backend.time.run_for(GRANTED_MS / 20)
                return SessionState.DISCONNECTED in client.recorder.states

            backend.time.run_until(keep_sending)
            assert backend.time.now_ms() - begin_ms < ASKED_MS / 2
        finally:
            backend.close()
