"""Read ``__cluster_events`` with Spark, decode the events in the tasks, and compute the metrics on the driver."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow as pa

from paceline.model.errors import UnknownTopicOrPartitionError
from paceline.model.tls import TlsFiles
from paceline.pipeline.jobs.analyse.events import EventRow, from_dict, in_order, row_of
from paceline.pipeline.jobs.analyse.metrics import failovers, isr_churn, leader_imbalance, under_replicated
from paceline.pipeline.jobs.certificates import ssl_options
from paceline.pipeline.jobs.run import ExitCode, JobListener, JobResult, SilentListener
from paceline.pipeline.source.options import parse_batch_options
from paceline.rpc.security.client_tls import files_in_environment

EVENTS_TOPIC: Final = "__cluster_events"
EVENT_ID_HEADER: Final = "event-id"
_COLUMNS: Final = "topic,partition,offset,value,headers"


@dataclass(frozen=True, slots=True)
class AnalyseConfig:
    """Selects the events to analyse."""

    bootstrap_servers: tuple[str, ...]
    topic: str = EVENTS_TOPIC
    since_ms: int | None = None
    """Earliest time of an event's record; None selects all events of the topic."""
    tls: TlsFiles | None = None
    """Certificate files, at the same paths on driver and executors; None: the files in the driver's environment."""


def run(spark: Any, config: AnalyseConfig, listener: JobListener | None = None) -> JobResult:
    """Return the metrics of the cluster's events.

    Raises:
        UnknownTopicOrPartitionError: the cluster does not publish its events.
        PacelineError: the cluster did not answer in time.
    """
    listener = listener or SilentListener()
    config = replace(config, tls=config.tls or files_in_environment())
    _check_topic(config)
    events = read_events(spark, config)
    listener.step("read", {"events": len(events)})
    return JobResult(ExitCode.OK, analyse(events))


def _check_topic(config: AnalyseConfig) -> None:

    options = parse_batch_options(_source_options(config))
    if not options.view().describe_topics([config.topic]):
        raise UnknownTopicOrPartitionError(
            f"topic {config.topic} does not exist: brokers and controllers publish their events once each of them has "
            "cluster.events.topic.enable=true"
        )


def _source_options(config: AnalyseConfig) -> dict[str, str]:
    servers = ",".join(config.bootstrap_servers)
    return {"paceline.bootstrap.servers": servers, "subscribe": config.topic, **ssl_options(config.tls)}


def read_events(spark: Any, config: AnalyseConfig) -> list[EventRow]:
    """Return every event once, in topic order."""
    reader = (
        spark.read.format("paceline")
        .options(**_source_options(config))
        .option("columns", _COLUMNS)
        .option("failOnDataLoss", "false")
    )
    if config.since_ms is not None:
        reader = reader.option("startingTimestamp", str(config.since_ms))
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
    rows = reader.load().mapInArrow(decode_events, "event string").collect()
    return in_order(from_dict(json.loads(row.event)) for row in rows)


def decode_events(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the JSON form of each event; skips records that are not events."""
    for batch in batches:
        found = []
        for record in batch.to_pylist():
            ids = [h["value"] for h in record["headers"] or () if h["key"] == EVENT_ID_HEADER]
            event_id = ids[0].decode("utf-8", "replace") if ids and ids[0] else f"offset-{record['offset']}"
            row = row_of(record["value"] or b"", event_id, record["offset"])
            if row is not None:
                found.append(json.dumps(asdict(row)))
        yield pa.RecordBatch.from_pydict({"event": pa.array(found, type=pa.string())})


def analyse(events: list[EventRow]) -> dict[str, Any]:
    """Return all metrics as a JSON object."""
    churn = isr_churn(events)
    small = under_replicated(events)
    minutes = leader_imbalance(events)
    moves = failovers(events)
    return {
        "events": len(events),
        "from_ms": min((event.time_ms for event in events), default=0),
        "to_ms": max((event.time_ms for event in events), default=0),
        "isr_shrinks": sum(each.shrinks for each in churn.values()),
        "isr_expands": sum(each.expands for each in churn.values()),
        "isr_flaps": sum(each.flaps for each in churn.values()),
        "under_replicated_minutes": round(sum(each.total_ms for each in small.values()) / 60_000, 3),
        "still_under_replicated": sum(each.still for each in small.values()),
        "leader_imbalance": round(minutes[-1].ratio, 3) if minutes else None,
        "leader_imbalance_worst": round(max(each.ratio for each in minutes), 3) if minutes else None,
        "failovers": len(moves.all),
        "failover_ms": moves.percentiles(),
        "negative_spans": moves.negative_spans,
        "details": {
            "churn": {f"{t}/{p}": asdict(each) for (t, p), each in sorted(churn.items())},
            "under_replicated": {f"{t}/{p}": asdict(each) for (t, p), each in sorted(small.items())},
            "leaders": [
                {"minute_ms": m.minute_ms, "leaders": {str(b): n for b, n in m.leaders.items()}, "ratio": m.ratio}
                for m in minutes
            ],
            "failovers": [{**asdict(each), "where": f"{each.where[0]}/{each.where[1]}"} for each in moves.all],
        },
    }
