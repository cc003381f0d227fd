"""`paceline broker`: partitions, log directories and settings of brokers; drain and undrain."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from paceline.cli.broker_drain import Drain, Undrain, failed_elections, plan_drain, plan_undrain, refuse_unknown_broker
from paceline.cli.connection import bootstrap_option, open_admin, partitions_of
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import confirm, reported
from paceline.cli.log_dir_moves import balancing_moves, carry_out, named_moves, parse_move, plan_rows
from paceline.cli.numbers import BROKER_ID, LONG_COUNT, SECONDS, parse_number
from paceline.cli.output import output_option, show, tell
from paceline.cli.reassign_plan import encode_plan, read_plan
from paceline.cli.reassign_requests import alter_moves, elect_leaders

if TYPE_CHECKING:
    from paceline_client import Admin

_MOST_NAMED: Final = 20


@click.group()
def broker() -> None:
    """Partitions, log directories and settings of brokers; drain and undrain."""


@broker.command("list")
@output_option
@bootstrap_option
def list_brokers(output: str, bootstrap: str) -> None:
    """List brokers, live or dead, with the number of partitions they hold, lead and are preferred leader for."""
    with reported(output):
        with open_admin(bootstrap) as admin:
            cluster = admin.describe_cluster()
            partitions = [partition for topic in admin.describe_topics() for partition in topic.partitions]
        held = Counter(replica for partition in partitions for replica in partition.replicas)
        led = Counter(partition.leader for partition in partitions)
        preferred = Counter(partition.replicas[0] for partition in partitions if partition.replicas)
        behind = Counter(
            replica for partition in partitions for replica in partition.replicas if replica not in partition.isr
        )
        live = {each.broker_id: each for each in cluster.brokers}
        rows = [
            {
                "broker": broker_id,
                "live": broker_id in live,
                "address": live[broker_id].address if broker_id in live else None,
                "rack": (live[broker_id].rack if broker_id in live else None) or None,
                "replicas": held[broker_id],
                "leads": led[broker_id],
                "preferred_for": preferred[broker_id],
                "not_in_sync": behind[broker_id],
            }
            for broker_id in sorted({*live, *held})
        ]
        show(rows, output)


@broker.command()
@click.argument("broker_id", metavar="ID", type=BROKER_ID)
@output_option
@bootstrap_option
def describe(broker_id: int, output: str, bootstrap: str) -> None:
    """List the partitions of a broker; exits with 3 when it is not live or one of its replicas is not in sync."""
    with reported(output):
        with open_admin(bootstrap) as admin:
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
        if live is None and output != "table":
            click.echo(f"broker {broker_id} is not live", err=True)
    if live is None or not all(row["in_sync"] for row in rows):
        raise SystemExit(NEGATIVE_VERDICT)


@broker.command()
@click.argument("broker_id", metavar="ID", type=BROKER_ID)
@click.option(
    "--save",
    "plan_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="save the old order of replicas in a new file, for `paceline broker undrain --file`",
)
@click.option("--dry-run", is_flag=True, help="show the changes without making them")
@output_option
@bootstrap_option
def drain(broker_id: int, plan_file: Path | None, dry_run: bool, output: str, bootstrap: str) -> None:
    """Move leadership off a live broker, which continues as a follower; no record is copied.

    The broker becomes the last replica of every partition whose preferred leader it was, and other replicas are
    elected. Topics created later may use it as preferred leader again. A broker that is being stopped does not need a
    drain: its controlled shutdown moves leaders. Exits with 3 when it still leads a partition that has other replicas.
    """
    with reported(output), open_admin(bootstrap) as admin:
        moving = {move.topic_partition for move in admin.list_partition_reassignments()}
        topics = admin.describe_topics(from_controller=True)
        refuse_unknown_broker(broker_id, [each.broker_id for each in admin.describe_cluster().brokers], topics)
        found = plan_drain(topics, broker_id, moving)
        if plan_file is not None and not dry_run:
            _keep(plan_file, encode_plan(found.before))
        if not dry_run:
            _carry_out(admin, found)
    _tell_moves(found, output, dry_run, f"off broker {broker_id}")
    if found.single:
        named = [f"{topic}/{index}" for topic, index in sorted(found.single)]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        click.echo(f"without another replica, so that they stay: {', '.join(named[:_MOST_NAMED])}{more}", err=True)
        click.echo(f"`paceline broker evacuate {broker_id}` copies them to other brokers", err=True)
    if found.stuck:
        raise SystemExit(NEGATIVE_VERDICT)


@broker.command()
@click.argument("broker_id", metavar="ID", type=BROKER_ID)
@click.option(
    "--file",
    "plan_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="file written by `paceline broker drain --save`; without it the broker gets its share of leaders",
)
@click.option("--dry-run", is_flag=True, help="show the changes without making them")
@output_option
@bootstrap_option
def undrain(broker_id: int, plan_file: Path | None, dry_run: bool, output: str, bootstrap: str) -> None:
    """Move leadership back to a drained broker; no record is copied.

    The broker becomes the preferred leader again and is elected for every partition where it is in sync. Exits with 3
    when a partition stays: the broker is not in sync yet, the partition is being reassigned, or its replicas have
    changed. Repeat the command later, or wait for the periodic leader rebalance.
    """
    with reported(output):
        before = None if plan_file is None else read_plan(plan_file)
        with open_admin(bootstrap) as admin:
            moving = {move.topic_partition for move in admin.list_partition_reassignments()}
            topics = admin.describe_topics(from_controller=True)
            refuse_unknown_broker(broker_id, [each.broker_id for each in admin.describe_cluster().brokers], topics)
            found = plan_undrain(topics, broker_id, moving, before)
            if not dry_run:
                _carry_out(admin, found)
    _tell_moves(found, output, dry_run, f"to broker {broker_id}")
    if found.stuck:
        raise SystemExit(NEGATIVE_VERDICT)


_throttle_option = click.option(
    "--throttle", "bytes_per_second", type=LONG_COUNT, metavar="BYTES", help="limit of the copies, bytes per second"
)
_timeout_option = click.option("--timeout", "timeout_s", type=SECONDS, help="give up after so many seconds")
_targets_option = click.option(
    "--plan",
    "plan_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="targets, such as those of `reassign plan --all-topics --by-load 30 --brokers OTHERS --file PLAN.json`",
)


@broker.command()
@click.argument("broker_id", metavar="ID", type=BROKER_ID)
@_throttle_option
@_timeout_option
@_targets_option
@click.option("--dry-run", is_flag=True, help="print the plan of the moves without making them")
@bootstrap_option
def evacuate(
    broker_id: int,
    bytes_per_second: int | None,
    timeout_s: float | None,
    plan_file: Path | None,
    dry_run: bool,
    bootstrap: str,
) -> None:
    """Move every replica of every topic off a broker, which stays in the cluster; repeat the command to continue.

    The other brokers get even shares by count, over racks, or the targets of --plan. Topics created later may use the
    broker again; `broker remove` avoids that. Exits with 3 when nothing moves any more: the lines name each partition
    and what it waits for.
    """
    with reported(), open_admin(bootstrap) as admin:
        _empty(admin, broker_id, bytes_per_second, timeout_s, plan_file, dry_run, is_removal=False)
    if not dry_run:
        click.echo(f"broker {broker_id} has no replicas")


@broker.command()
@click.argument("broker_id", metavar="ID", type=BROKER_ID)
@_throttle_option
@_timeout_option
@_targets_option
@click.option("--dry-run", is_flag=True, help="print the plan of the moves without making them")
@click.option("--cancel", "is_cancelled", is_flag=True, help="take a removed broker back, or stop a removal")
@click.option("--yes", is_flag=True, help="do not ask")
@bootstrap_option
def remove(
    broker_id: int,
    bytes_per_second: int | None,
    timeout_s: float | None,
    plan_file: Path | None,
    dry_run: bool,
    is_cancelled: bool,
    yes: bool,
    bootstrap: str,
) -> None:
    """Remove a broker: move every replica off it, then mark it removed; repeat the command to continue.

    From the start on it gets no new replicas. A removed broker unregisters and stays up, healthy and idle, until its
    process is stopped for good or --cancel takes it back. Refused for the last live broker, and while another broker is
    being removed. Exits with 3 when nothing moves any more: the lines name each partition and what it waits for.
    """
    from paceline.cli.broker_removal import cancel

    with reported(), open_admin(bootstrap) as admin:
        if is_cancelled:
            moves = cancel(admin, broker_id)
            click.echo(f"broker {broker_id} is not being removed; {moves} moves cancelled; it registers within seconds")
            return
        if not dry_run and not yes:
            confirm(f"move every replica off broker {broker_id} and remove it?")
        _empty(admin, broker_id, bytes_per_second, timeout_s, plan_file, dry_run, is_removal=True)
    if not dry_run:
        click.echo(f"broker {broker_id} is removed; its process stays idle until it is stopped, --cancel takes it back")


def _empty(
    admin: "Admin",
    broker_id: int,
    bytes_per_second: int | None,
    timeout_s: float | None,
    plan_file: Path | None,
    dry_run: bool,
    is_removal: bool,
) -> None:
    from paceline.cli import broker_removal

    topics = admin.describe_topics(from_controller=True)
    racks = broker_removal.racks_of(admin)
    refuse_unknown_broker(broker_id, list(racks), topics)
    plan = read_plan(plan_file) if plan_file is not None else None
    if dry_run:
        click.echo(encode_plan(broker_removal.place_elsewhere(topics, broker_id, racks, plan)), nl=False)
        return
    try:
        work = broker_removal.remove if is_removal else broker_removal.evacuate
        work(admin, broker_id, bytes_per_second, timeout_s, plan)
    except broker_removal.StuckEvacuationError as error:
        click.echo(f"not finished; repeat the command when this is repaired:\n{error}", err=True)
        raise SystemExit(NEGATIVE_VERDICT) from None


@broker.command()
@click.argument("broker_ids", metavar="[ID]...", nargs=-1, type=BROKER_ID)
@click.option("--topic", "topics", multiple=True, help="only replicas of this topic; may be repeated")
@click.option("--replicas", "each", is_flag=True, help="print a row per replica, not per directory")
@click.option("--retry", metavar="DIR", help="first take this failed directory of the broker back, without a restart")
@click.option("--move", "moves", multiple=True, metavar="TOPIC/PARTITION=DIR", help="move a replica; may be repeated")
@click.option("--balance", is_flag=True, help="move replicas until the directories of each broker have about one size")
@click.option("--yes", is_flag=True, help="do not ask before moving")
@output_option
@bootstrap_option
def logdirs(
    broker_ids: tuple[int, ...],
    topics: tuple[str, ...],
    each: bool,
    retry: str | None,
    moves: tuple[str, ...],
    balance: bool,
    yes: bool,
    output: str,
    bootstrap: str,
) -> None:
    """List log directories and their replicas; exits with 3 when a directory failed or a broker does not answer.

    The state of a directory is online; short while its disk has too little free space, so that produce requests are
    refused; full while followers pause, too; or failed.

    --move and --balance print the moves and ask before they start. The brokers then copy, as fast as the setting
    replica.alter.log.dirs.io.max.bytes.per.second allows; --replicas shows a copy with is_future and the records that
    it lacks. The present directory as target cancels a move.
    """
    if retry is not None and len(broker_ids) != 1:
        raise click.UsageError("--retry needs the ID of one broker")
    if moves or balance:
        _move_replicas(broker_ids, moves, balance, yes, output, bootstrap)
        return
    with reported(output):
        with open_admin(bootstrap) as admin:
            if retry is not None:
                admin.retry_log_dir(broker_ids[0], retry)
            only = list(partitions_of(admin.describe_topics(topics))) if topics else None
            found = admin.describe_log_dirs(broker_ids or None, only)
        rows = []
        for one in found:
            if one.error is not None:
                click.echo(f"{one.error.code.name}: {one.error}", err=True)
            for log_dir in one.log_dirs:
                where = {"broker": one.broker_id, "directory": log_dir.path}
                state = "online" if log_dir.error is None else "failed"
                if not each:
                    count, size, space = len(log_dir.replicas), log_dir.size_bytes, log_dir.space
                    rows.append(
                        {
                            **where,
                            "state": state if space is None or space.room in ("ROOMY", "") else space.room.lower(),
                            "replicas": count,
                            "bytes": size,
                            "free": None if space is None else space.free_bytes,
                            "min_free": None if space is None else space.min_free_bytes,
                            "reserve": None if space is None else space.reserve_bytes,
                            "disk": None if space is None else space.total_bytes,
                        }
                    )
                    continue
                rows += [
                    {
                        **where,
                        "partition": str(replica.topic_partition),
                        "bytes": replica.size_bytes,
                        "offset_lag": replica.offset_lag,
                        "is_future": replica.is_future,
                    }
                    for replica in log_dir.replicas
                ]
        show(rows, output)
    if any(one.error is not None or any(log_dir.error is not None for log_dir in one.log_dirs) for one in found):
        raise SystemExit(NEGATIVE_VERDICT)


def _move_replicas(
    broker_ids: tuple[int, ...], texts: tuple[str, ...], balance: bool, yes: bool, output: str, bootstrap: str
) -> None:
    if texts and balance:
        raise click.UsageError("give either --move or --balance")
    wanted = dict(parse_move(text) for text in texts)
    with reported(output), open_admin(bootstrap) as admin:
        found = admin.describe_log_dirs(broker_ids or None)
        for one in found:
            if one.error is not None:
                raise one.error
        moves = named_moves(found, wanted) if wanted else {}
        for broker in found if balance else ():
            moves |= balancing_moves(broker)
        rows = plan_rows(found, moves)
        if rows and not yes:
            show(rows, "table")
            confirm(f"start {len(rows)} moves?")
        started = carry_out(admin, moves) if rows else []
        tell(started, output, f"{sum(row['started'] for row in started)} of {len(rows)} moves started")
    refused = [row for row in started if not row["started"]]
    for row in refused:
        click.echo(f"{row['error']}: {row['partition']} on broker {row['broker']}: {row['message']}", err=True)
    if refused:
        raise SystemExit(NEGATIVE_VERDICT)


def _carry_out(admin: "Admin", found: Drain | Undrain) -> None:
    """Change the replica order, then elect the leaders; adds failures to ``stuck``."""
    for change in alter_moves(admin, found.order):
        if change.error is not None:
            found.stuck[change.topic_partition] = str(change.error)
    wanted = [where for where in found.elect if where not in found.stuck]
    found.stuck.update(failed_elections(elect_leaders(admin, "preferred", wanted)))


def _tell_moves(found: Drain | Undrain, output: str, dry_run: bool, where_to: str) -> None:
    """Print how many leaders have moved, and each that stays, with the reason."""
    done = "would move" if dry_run else "moved"
    moved = [where for where in found.elect if where not in found.stuck]
    rows = [
        {"partition": f"{where[0]}/{where[1]}", "leader": "stays" if reason else done, "reason": reason}
        for where, reason in sorted((dict.fromkeys(moved) | found.stuck).items())
    ]
    tell(rows, output, f"{len(moved)} leaders {done} {where_to}")
    for (topic, index), reason in sorted(found.stuck.items()):
        click.echo(f"{topic}/{index} stays: {reason}", err=True)


def _keep(path: Path, text: str) -> None:
    """Write a file that must not exist yet: an earlier file is the only copy of the replica order before that drain.

    Raises:
        FileExistsError: the file exists.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise FileExistsError(
            f"{path} exists already and may have the replica order of an earlier drain; nothing was changed"
        ) from None


def _parse_broker(context: click.Context, parameter: click.Parameter, text: str) -> int | None:
    if text == "all":
        return None
    number = parse_number(text)
    if number is None:
        raise click.BadParameter(f"{text!r} is neither a broker id nor all")
    return number


_which_broker = click.argument("which", metavar="ID|all", callback=_parse_broker)


def _warn_if_not_live(admin: "Admin", which: int | None) -> bool:
    """Warn when a broker is not live, because its id may be mistyped; return whether there was a warning."""
    if which is None:
        return False
    live = [each.broker_id for each in admin.describe_cluster().brokers]
    if which not in live:
        click.echo(f"broker {which} is not live; live brokers: {', '.join(map(str, live)) or 'none'}", err=True)
    return which not in live


@broker.command()
@_which_broker
@output_option
@bootstrap_option
def configs(which: int | None, output: str, bootstrap: str) -> None:
    """Show the dynamic settings of a broker or of all brokers, each value with its source.

    GET /config on the metrics port of a broker shows its other settings. Exits with 3 when the broker is not live.
    """
    with reported(output):
        with open_admin(bootstrap) as admin:
            found = admin.describe_broker_configs([which])[which]
            is_missing = _warn_if_not_live(admin, which)
        show([{"key": entry.key, "value": entry.value, "source": entry.source} for entry in found], output)
    if is_missing:
        raise SystemExit(NEGATIVE_VERDICT)


@broker.command()
@_which_broker
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="set a key; may be repeated")
@click.option("--delete", "deletes", multiple=True, metavar="KEY", help="remove a key at this level; may be repeated")
@click.option("--validate-only", is_flag=True, help="check without changing anything")
@output_option
@bootstrap_option
def alter(
    which: int | None,
    sets: tuple[str, ...],
    deletes: tuple[str, ...],
    validate_only: bool,
    output: str,
    bootstrap: str,
) -> None:
    """Change dynamic settings of a broker or of all brokers; running brokers apply them within a second."""
    if not sets and not deletes:
        raise click.UsageError("give at least one of --set and --delete")
    pairs = [text.partition("=") for text in sets]
    for key, separator, _ in pairs:
        if not key or not separator:
            raise click.BadParameter(f"{key!r} is not KEY=VALUE")
    with reported(output):
        from paceline_client import ConfigChange

        changes = [ConfigChange(key, "delete") for key in deletes]
        changes += [ConfigChange(key, "set", value) for key, _, value in pairs]
        with open_admin(bootstrap) as admin:
            admin.alter_broker_configs({which: changes}, validate_only=validate_only)
            _warn_if_not_live(admin, which)
    said = "all brokers" if which is None else f"broker {which}"
    row = {"broker": which, "altered": not validate_only}
    tell([row], output, f"{said} can be altered" if validate_only else f"altered {said}")
