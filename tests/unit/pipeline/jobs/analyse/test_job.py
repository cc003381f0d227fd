"""The analysis before it reads: a cluster that does not publish its events."""

import pytest

from paceline.model.errors import UnknownTopicOrPartitionError
from paceline.pipeline.jobs.analyse import job
from paceline_client.process_channels import close_channels
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition


def test_a_cluster_that_publishes_no_events_is_an_error_that_names_the_setting() -> None:
    with ServedCluster({("t", 0): ServedPartition(b"")}) as served:
        with pytest.raises(UnknownTopicOrPartitionError, match=r"cluster\.events\.topic\.enable=true"):
            job.run(None, job.AnalyseConfig((served.bootstrap,)))
        close_channels()
