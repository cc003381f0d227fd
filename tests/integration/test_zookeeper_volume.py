"""Many requests and large data through both clients, and callbacks that fail."""

from collections.abc import Iterator

import pytest

from paceline.coordination.interface import (
    Check,
    Create,
    GetChildren,
    GetData,
    GetMany,
    Multi,
    Response,
    SetData,
    ZkCode,
)
from paceline.coordination.requests import MAX_REQUEST_BYTES
from tests.integration.zookeeper_backends import Backend, MemoryBackend, RealBackend


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.zookeeper)])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made: Backend
    if request.param == "memory":
        made = MemoryBackend()
    else:
        made = RealBackend(request.getfixturevalue("zookeeper_server"), request.getfixturevalue("zookeeper_chroot"))
    yield made
    made.close()


def test_thousands_of_requests_in_one_submit_are_all_answered_in_order(backend: Backend) -> None:
    client = backend.client()
    count = 3_000
    creates = [Create(f"/n{number}", str(number).encode()) for number in range(count)]
    reads = [GetData(f"/n{number}") for number in range(count)]
    answers = backend.ask(client, *creates, *reads)
    assert [answer.path for answer in answers[:count]] == [create.path for create in creates]
    assert [answer.data for answer in answers[count:]] == [create.data for create in creates]
    (listed,) = backend.ask(client, GetChildren("/"))
    assert listed.children == tuple(sorted(create.path[1:] for create in creates))


def test_a_multi_of_a_thousand_writes_is_fenced_as_a_whole(backend: Backend) -> None:
    client = backend.client()
    backend.ask(client, Create("/fence"), *(Create(f"/{number}", b"") for number in range(1_000)))
    writes = tuple(SetData(f"/{number}", b"x" * 200, 0) for number in range(1_000))
    fenced, moved, done = backend.ask(
        client, Multi((Check("/fence", 1), *writes)), SetData("/fence", b""), Multi((Check("/fence", 1), *writes))
    )
    assert (fenced.code, moved.code, done.code) == (ZkCode.BAD_VERSION, ZkCode.OK, ZkCode.OK)
    assert fenced.results[0].code is ZkCode.BAD_VERSION
    assert {result.code for result in fenced.results[1:]} == {ZkCode.ROLLED_BACK}
    assert [result.stat.version for result in done.results[1:] if result.stat] == [1] * 1_000


def test_one_request_reads_many_nodes_and_each_has_a_result(backend: Backend) -> None:
    client = backend.client()
    backend.ask(client, Create("/null", None), Create("/empty", b""), Create("/é", "ü".encode() * 1_000))
    paths = ("/null", "/absent", "/é", "/empty")
    (many,) = backend.ask(client, GetMany(paths))
    assert many.code is ZkCode.OK
    found = [(result.code, result.data) for result in many.results]
    assert found[:3] == [(ZkCode.OK, None), (ZkCode.NO_NODE, None), (ZkCode.OK, "ü".encode() * 1_000)]
    assert found[3] == (ZkCode.OK, b"")
    (none, refused, ended) = backend.ask(client, GetMany(()), GetMany(("/a/../b",)), GetMany(("/empty",) * 500))
    assert (none.code, none.results, refused.code) == (ZkCode.OK, (), ZkCode.BAD_ARGUMENTS)
    assert [result.data for result in ended.results] == [b""] * 500


def test_data_of_nearly_a_mebibyte_is_written_and_read_and_more_is_refused_by_the_client(backend: Backend) -> None:
    client = backend.client()
    large = bytes(range(256)) * (MAX_REQUEST_BYTES // 256 - 1)
    created, refused, read = backend.ask(
        client, Create("/large", large), SetData("/large", large + bytes(2_000)), GetData("/large")
    )
    assert (created.code, refused.code, read.code) == (ZkCode.OK, ZkCode.BAD_ARGUMENTS, ZkCode.OK)
    assert read.data == large
    assert len(client.recorder.states) == 1


def test_invalid_paths_are_refused_by_the_client(backend: Backend) -> None:
    client = backend.client()
    paths = ["", "a", "/a/", "//", "/a//b", "/.", "/a/../b", "/a\0", "/\ud800"]
    answers = backend.ask(client, *(GetData(path) for path in paths), GetData("/none"))
    assert [answer.code for answer in answers] == [ZkCode.BAD_ARGUMENTS] * len(paths) + [ZkCode.NO_NODE]


def test_a_callback_that_raises_does_not_delay_later_responses(backend: Backend) -> None:
    client = backend.client()

    def fail(responses: list[Response]) -> None:
        raise RuntimeError("on purpose")

    client.zookeeper.submit([GetData("/")], fail)
    answers = client.recorder.submit(GetData("/"))
    with pytest.raises(RuntimeError, match="on purpose"):
        backend.time.run_until(lambda: bool(answers))
    backend.time.run_until(lambda: bool(answers))
    assert answers[0].ok
