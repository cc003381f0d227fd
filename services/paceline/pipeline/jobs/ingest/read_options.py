"""Options of the data source for an ingest."""

from paceline.pipeline.jobs.certificates import ssl_options
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline.pipeline.source.options import ReadOptions, parse_batch_options


def read_options(config: IngestConfig) -> ReadOptions:
    """Return the data source's options for this ingest.

    Raises:
        InvalidOptionError: the bootstrap servers are malformed.
    """
    return parse_batch_options(
        {
            "paceline.bootstrap.servers": ",".join(config.bootstrap_servers),
            "subscribe": ",".join(config.topics),
            "failOnDataLoss": "false" if config.allow_data_loss else "true",
            "paceline.fetch.max.bytes": str(config.fetch_max_bytes),
            "groupIdPrefix": "paceline-ingest",
            **ssl_options(config.tls),
        }
    )
