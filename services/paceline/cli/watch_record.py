"""`paceline watch --record FILE`: record a cluster for `paceline console --replay FILE`."""

import threading
import time
from pathlib import Path

import click

from paceline.cli.connection import open_admin
from paceline.console.recording import Entry, Header, RecordingWriter
from paceline.console.service.collector import MOST_SAMPLED, Collector
from paceline.model.identifiers import INTERNAL_TOPICS, TopicPartition


def record(bootstrap: str, path: Path, wanted: list[tuple[str, int | None]]) -> None:
    """Record events of the cluster and samples of these partitions, or of all, until interrupted.

    Raises:
        PacelineError: no broker answers, or a topic does not exist.
        OSError: the file cannot be written.
    """
    with open_admin(bootstrap) as admin:
        cluster = admin.describe_cluster()
        topics = admin.describe_topics(sorted({topic for topic, _ in wanted}) or None)
    found = [
        TopicPartition(topic.name, one.partition)
        for topic in topics
        for one in topic.partitions
        if any(topic.name == name and index in (None, one.partition) for name, index in wanted)
        or (not wanted and topic.name not in INTERNAL_TOPICS)
    ]
    sampled = found[:MOST_SAMPLED]
    if len(found) > len(sampled):
        click.echo(f"sampling {len(sampled)} of {len(found)} partitions; name topics to choose others", err=True)
    began_ms = int(time.time() * 1000)
    header = Header(
        title=f"cluster {cluster.cluster_id}",
        origin="cluster",
        began_ms=began_ms,
        made_by=f"paceline watch --record {path.name}",
    )
    failed: list[OSError] = []
    over = threading.Event()
    with path.open("w", encoding="utf-8") as file:
        writer = RecordingWriter(file.write, header)

        def add(entry: Entry) -> None:
            try:
                writer.add(entry)
                file.flush()
            except OSError as error:
                failed.append(error)
                over.set()

        collector = Collector(lambda: open_admin(bootstrap), add, lambda: sampled, began_ms)
        collector.start()
        click.echo(f"recording {len(sampled)} partitions into {path}; Ctrl-C ends it", err=True)
        try:
            over.wait()
        except KeyboardInterrupt:
            pass
        finally:
            collector.close()
        if failed:
            raise failed[0]
        writer.end()
    click.echo(f"recorded; play it with: paceline console --replay {path}", err=True)
