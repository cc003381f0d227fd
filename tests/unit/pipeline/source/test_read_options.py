"""Options of a read that show in the requests that brokers get; others: test_planning.py and test_options.py."""

from collections.abc import Iterator

import pytest

from paceline.pipeline.data_source import PacelineDataSource
from paceline.v1 import log_service_pb2
from paceline_client.process_channels import close_channels
from tests.unit.pipeline.batches import encode, simple_records
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    log = b"".join(encode(simple_records(10, at)) for at in range(0, 400, 10))
    with ServedCluster({("t", 0): ServedPartition(log)}) as cluster:
        yield cluster
    close_channels()


def count(served: ServedCluster, servers: str = "", **given: str) -> int:
    names = {name.replace("__", "."): value for name, value in given.items()}
    source = PacelineDataSource({"paceline.bootstrap.servers": servers or served.bootstrap, "subscribe": "t"} | names)
    reader = source.reader(source.schema())
    return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))


def test_an_answer_has_the_size_that_was_asked_for(served: ServedCluster) -> None:
    assert count(served, paceline__fetch__max__bytes="2000") == 400
    assert {request.max_bytes for request in served.fetches[1:]} == {2_000}
    assert len(served.fetches) > 8


def test_the_group_id_prefix_is_what_brokers_see(served: ServedCluster) -> None:
    assert count(served, groupIdPrefix="nightly") == 400
    assert served.user_agents and all(each.startswith("nightly") for each in served.user_agents)


def test_reads_are_uncommitted(served: ServedCluster) -> None:
    assert count(served, paceline__isolation__level="read_uncommitted") == 400
    levels = {request.isolation_level for request in served.fetches[1:]}
    assert levels == {log_service_pb2.ISOLATION_LEVEL_UNSPECIFIED}, "which means READ_UNCOMMITTED"


def test_any_of_several_bootstrap_servers_will_do(served: ServedCluster) -> None:
    assert count(served, f"127.0.0.1:1,{served.bootstrap}") == 400
