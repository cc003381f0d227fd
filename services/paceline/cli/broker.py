"""`paceline broker`: what brokers hold, and leadership off one of them."""

from collections import Counter
from pathlib import Path

import click

from paceline.cli.broker_drain import plan_drain
from paceline.cli.connection import bootstrap_option
from paceline.cli.failures import NEGATIVE_VERDICT, reported
from paceline.cli.output import output_option, show
from paceline.cli.reassign_plan import encode_plan


@click.group()
def broker() -> None:
    """What brokers hold and lead; leadership off a broker."""


@broker.command("list")
@output_option
@bootstrap_option
def list_brokers(output: str, bootstrap: str) -> None:
    """List live brokers with the partitions they hold, lead, and should lead."""
    with reported(output):
        from paceline_client import Admin

        with Admin(bootstrap) as admin:
            cluster = admin.describe_cluster()
            partitions = [partition for topic in admin.describe_topics() for partition in topic.partitions]
        held = Counter(replica for partition in partitions for replica in partition.replicas)
        led = Counter(partition.leader for partition in partitions)
        preferred = Counter(partition.replicas[0] for partition in partitions if partition.replicas)
        behind = Counter(
            replica for partition in partitions for replica in partition.replicas if replica not in partition.isr
        )
        rows = [
            {
                "broker": each.broker_id,
                "address": each.address,
                "rack": each.rack or None,
                "replicas": held[each.broker_id],
                "leads": led[each.broker_id],
                "preferred_for": preferred[each.broker_id],
                "not_in_sync": behind[each.broker_id],
            }
            for each in cluster.brokers
        ]
        show(rows, output)


@broker.command()
@click.argument("broker_id", metavar="ID", type=int)
@output_option
@bootstrap_option
def describe(broker_id: int, output: str, bootstrap: str) -> None:
    """List the partitions of one broker; exits with 3 when it is not live or a replica is not in sync."""
    with reported(output):
        from paceline_client import Admin

        with Admin(bootstrap) as admin:
            cluster = admin.describe_cluster()
            topics = admin.describe_topics()
        live = next((each for each in cluster.brokers if each.broker_id == broker_id), None)
        rows = [
            {
                "partition": f"{topic.name}/{partition.partition}",
                "role": "leader" if partition.leader == broker_id else "follower",
                "preferred": partition.replicas[0] == broker_id,
                "in_sync": broker_id in partition.isr,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
            }
            for topic in topics
            for partition in topic.partitions
            if broker_id in partition.replicas
        ]
        where = f"{live.address}{', rack ' + live.rack if live.rack else ''}" if live else "not live"
        show(rows, output, title=f"broker {broker_id}, {where}")
    if live is None or not all(row["in_sync"] for row in rows):
        raise SystemExit(NEGATIVE_VERDICT)


@broker.command()
@click.argument("broker_id", metavar="ID", type=int)
@click.option(
    "--save",
    "plan_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="keep the old order of replicas, for `paceline reassign start` when the broker shall lead again",
)
@click.option("--dry-run", is_flag=True, help="say what would change, change nothing")
@bootstrap_option
def drain(broker_id: int, plan_file: Path | None, dry_run: bool, bootstrap: str) -> None:
    """Take leadership off a broker that stays up; it goes on as a follower, and no record is copied.

    The broker becomes the last choice for every partition it was the first for, and the others are elected. Topics made
    later may choose it again. A broker that is stopped hands over by itself. Exits with 3 when it still leads a
    partition that has other replicas.
    """
    with reported():
        from paceline_client import Admin

        with Admin(bootstrap) as admin:
            moving = {move.topic_partition for move in admin.list_partition_reassignments()}
            found = plan_drain(admin.describe_topics(from_controller=True), broker_id, moving)
            if plan_file is not None:
                plan_file.write_text(encode_plan(found.before), encoding="utf-8")
            if not dry_run:
                for change in admin.alter_partition_reassignments(found.order, raise_errors=False):
                    if change.error is not None:
                        found.stuck[change.topic_partition] = str(change.error)
                wanted = [where for where in found.elect if where not in found.stuck]
                for result in admin.elect_leaders("preferred", wanted, raise_errors=False):
                    if result.error is not None and result.leader is None:
                        found.stuck[result.topic_partition] = str(result.error)
    moved = len([where for where in found.elect if where not in found.stuck])
    click.echo(f"{moved} leaders {'would move' if dry_run else 'moved'} off broker {broker_id}")
    for (topic, index), reason in sorted(found.stuck.items()):
        click.echo(f"{topic}/{index} stays: {reason}", err=True)
    if found.single:
        click.echo(f"{len(found.single)} partitions have no other replica; only a move can help them", err=True)
    if found.stuck:
        raise SystemExit(NEGATIVE_VERDICT)
