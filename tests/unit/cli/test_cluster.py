"""`paceline cluster info` against brokers over real gRPC."""

import json

import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from tests.unit.pipeline.served_log import ServedCluster


@pytest.mark.usefixtures("ipv6")
def test_cluster_info_shows_an_ipv6_host_in_brackets() -> None:
    with ServedCluster({}, host="::1") as served:
        ended = CliRunner().invoke(cli, ["cluster", "info", "-b", served.bootstrap, "-o", "json"])
        assert [row["address"] for row in json.loads(ended.stdout)] == [f"[::1]:{served.ports[1]}"]
