"""`paceline reassign`: move partitions to other brokers: plan, start, status, cancel."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.connection import bootstrap_option, open_admin, parse_partition, partitions_of
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import exit_code_of, reported
from paceline.cli.log_dir_moves import prepare_directories
from paceline.cli.numbers import COUNT, LONG_COUNT, SECONDS
from paceline.cli.output import Row, error_fields, output_option, show, tell
from paceline.cli.reassign_load import measure
from paceline.cli.reassign_plan import Partition, copies, differences, encode_plan, read_log_dirs, read_plan
from paceline.cli.reassign_requests import alter_moves, list_moves
from paceline.cli.reassign_throttle import lift_throttle, plan_throttle, set_throttle
from paceline.model.errors import PacelineError, UnknownTopicOrPartitionError
from paceline.operations.reassign_progress import NO_SPEED, Progress, move_row, throttled_brokers
from paceline.operations.reassign_progress import measure as measure_speeds
from paceline.planning.goals import DEFAULT_THRESHOLD, Balance, count_goals, load_goals
from paceline.planning.planner import make_plan

if TYPE_CHECKING:
    from paceline_client import Admin, PartitionDescription, ReassignmentResult

_WATCH_EVERY_S = 1.0
_GONE = "gone"
_NOT_RUNNING = ("done", "not started", _GONE)
_preserve_option = click.option("--preserve-throttles", is_flag=True, help="keep existing throttles")
_plan_argument = click.argument("plan_file", metavar="PLAN.json", type=click.Path(dir_okay=False, path_type=Path))


@click.group()
def reassign() -> None:
    """Move partitions to other brokers: plan, start, status, cancel."""


@reassign.command()
@click.option("--topic", "topics", multiple=True, help="topic to place; may be repeated")
@click.option("--all-topics", is_flag=True, help="place every topic, internal topics, too")
@click.option("--brokers", help="brokers to use, such as 1,2,4 [default: every live broker]")
@click.option("--replication-factor", type=COUNT, help="replicas per partition [default: the present number]")
@click.option(
    "--by-load",
    "sample_s",
    type=SECONDS,
    metavar="SECONDS",
    help="balance sizes, bytes in and bytes out too, measured for so many seconds; 0 measures sizes alone",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=DEFAULT_THRESHOLD,
    show_default=True,
    help="with --by-load: allowed deviation of a broker from its share",
)
@click.option("--file", "plan_file", type=click.Path(dir_okay=False, path_type=Path), help="output [default: stdout]")
@bootstrap_option
def plan(
    topics: tuple[str, ...],
    all_topics: bool,
    brokers: str | None,
    replication_factor: int | None,
    sample_s: float | None,
    threshold: float,
    plan_file: Path | None,
    bootstrap: str,
) -> None:
    """Print an even placement with few moves, spread over racks; changes nothing.

    A replica stays unless its broker is not in --brokers, has more than its share, or its rack has too many replicas.
    """
    if bool(topics) == all_topics:
        raise click.UsageError("give either --topic or --all-topics")
    with reported():
        with open_admin(bootstrap) as admin:
            racks = _racks(admin, brokers)
            current = _placement(admin, topics or admin.list_topics())
            goals = count_goals(len(current))
            if sample_s is not None:
                loads, idle = measure(admin, current, sample_s)
                goals = load_goals(current, loads, threshold)
        found = make_plan(current, racks, goals, replication_factor)
        moves = differences(current, found.placement)
        text = encode_plan(moves)
        if plan_file is None:
            click.echo(text, nl=False)
        else:
            plan_file.write_text(text, encoding="utf-8")
    click.echo(
        f"{len(moves)} of {len(current)} partitions change, {copies(current, moves)} replicas are copied", err=True
    )
    if found.crowded:
        click.echo(f"{found.crowded} partitions have more replicas in a rack than necessary", err=True)
    if sample_s is not None:
        size = sum(loads[one].size_bytes * copies(current, {one: replicas}) for one, replicas in moves.items())
        click.echo(f"{size:,.0f} bytes are copied; {idle} partitions have no measured rate and count as idle", err=True)
        for was, now in zip(found.before, found.after, strict=True):
            click.echo(f"{was.goal}: {_spread(was)}; then {_spread(now)}", err=True)


def _spread(balance: Balance) -> str:
    return f"{balance.lowest:.2f} to {balance.highest:.2f} of the share, {balance.outside} brokers outside"


@reassign.command()
@_plan_argument
@click.option("--validate-only", is_flag=True, help="check without moving anything")
@click.option(
    "--throttle",
    "bytes_per_second",
    type=LONG_COUNT,
    metavar="BYTES",
    help="limit in bytes per second for replication of these moves, per broker and direction",
)
@output_option
@bootstrap_option
def start(plan_file: Path, validate_only: bool, bytes_per_second: int | None, output: str, bootstrap: str) -> None:
    """Start the moves of a plan, which then run without the CLI. A new target for a partition replaces an older target.

    The throttle never delays in-sync replicas. It stays until `reassign status PLAN.json` finds all moves complete, or
    `reassign cancel` cancels the last move. For a plan that is already running, --throttle changes the rate.

    With log_dirs in the plan, new replicas are created in these directories, and replicas in other directories of their
    brokers move; `broker logdirs --replicas` shows these moves.
    """
    with reported(output):
        moves, log_dirs = read_plan(plan_file), read_log_dirs(plan_file)
        throttled = False
        with open_admin(bootstrap) as admin:
            if bytes_per_second is not None:
                # Set the throttle before the moves, so that no move runs unthrottled; remove it when all are refused.
                checked = alter_moves(admin, moves, validate_only=True)
                fine: set[Partition] = {each.topic_partition for each in checked if each.error is None}
                able = {where: target for where, target in moves.items() if where in fine}
                throttled = _throttle(admin, able, bytes_per_second, validate_only)
            if log_dirs and not validate_only:
                prepare_directories(admin, log_dirs)
            results = alter_moves(admin, moves, validate_only)
        accepted = sum(result.error is None for result in results)
        pace = "" if bytes_per_second is None else f", at {bytes_per_second} bytes a second"
        if pace and not throttled:
            pace = "; no records to copy, no throttle set"
        line = f"{accepted} of {len(results)} moves {'can be ' if validate_only else ''}started{pace}"
        tell([_outcome(result, "started", validate_only) for result in results], output, line)
        _tell_failures(results, output)


@reassign.command()
@click.argument("plan_file", metavar="[PLAN.json]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--watch", is_flag=True, help="print every change until all moves are complete")
@click.option("--timeout", "timeout_s", type=SECONDS, help="watch so many seconds, also while no controller answers")
@_preserve_option
@output_option
@bootstrap_option
def status(
    plan_file: Path | None,
    watch: bool,
    timeout_s: float | None,
    preserve_throttles: bool,
    output: str,
    bootstrap: str,
) -> None:
    """Show running moves, bytes left, speed and awaited replicas; with a plan, also its completed moves.

    When all moves of the plan are complete and no other move runs, removes the throttle of its topics and of all
    brokers. A deleted partition counts as complete. Exits with 3 when a move is stuck, or a move of the plan is not
    complete, for example at the end of --timeout; when no controller answers then, exits as every command does.
    """
    with reported(output):
        wanted = {} if plan_file is None else read_plan(plan_file)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        shown: list[Row] | None = None
        progress = Progress()
        with open_admin(bootstrap) as admin:
            while True:
                try:
                    rows = _status_rows(admin, wanted, progress)
                except PacelineError as error:
                    if not (watch and error.retriable and deadline is not None and time.monotonic() < deadline):
                        raise
                    click.echo(f"trying again: {error.code.name}: {error}", err=True)
                    time.sleep(_WATCH_EVERY_S)
                    continue
                if rows != shown:
                    show(rows, output)
                    shown = rows
                running = [row for row in rows if row["state"] not in _NOT_RUNNING]
                if not watch or not running or (deadline is not None and time.monotonic() > deadline):
                    break
                time.sleep(_WATCH_EVERY_S)
            if not preserve_throttles:
                _after_status(admin, wanted, shown)
    if any(row["state"] != "done" if wanted or watch else row["state"] == "stuck" for row in shown):
        raise SystemExit(NEGATIVE_VERDICT)


@reassign.command()
@click.argument("which", nargs=-1, metavar="[TOPIC/PARTITION]...")
@click.option("--plan", "plan_file", type=click.Path(dir_okay=False, path_type=Path), help="cancel the moves of a plan")
@click.option("--all", "everything", is_flag=True, help="cancel every running move")
@_preserve_option
@output_option
@bootstrap_option
def cancel(
    which: tuple[str, ...],
    plan_file: Path | None,
    everything: bool,
    preserve_throttles: bool,
    output: str,
    bootstrap: str,
) -> None:
    """Cancel moves: removes the replicas being added and keeps the others. Completed moves are not undone.

    When no move is running any more, removes the throttle of these topics and of all brokers.
    """
    if sum([bool(which), plan_file is not None, everything]) != 1:
        raise click.UsageError("name partitions, or give --plan, or --all")
    named = [_partition(text) for text in which]
    with reported(output):
        with open_admin(bootstrap) as admin:
            planned = {} if plan_file is None else read_plan(plan_file)
            moves = list_moves(admin, named or (None if plan_file is None else list(planned)))
            if not named:
                named = [move.topic_partition for move in moves]
            results = alter_moves(admin, dict.fromkeys(named))
            if not preserve_throttles and not admin.list_partition_reassignments():
                # Include brokers that died since the start: their throttle is still set and applies when they return.
                involved = [broker for move in moves for broker in (*move.replicas, *move.target)]
                involved += [broker for target in planned.values() for broker in target]
                _remove_throttles(admin, [topic for topic, _ in (named if plan_file is None else planned)], involved)
        line = f"{sum(result.error is None for result in results)} of {len(results)} moves cancelled"
        tell([_outcome(result, "cancelled") for result in results], output, line)
        _tell_failures(results, output)


def _racks(admin: "Admin", brokers: str | None) -> dict[int, str]:
    live = {broker.broker_id: broker.rack for broker in admin.describe_cluster().brokers}
    if brokers is None:
        return live
    try:
        wanted = [int(part) for part in brokers.split(",")]
    except ValueError:
        raise ValueError(f"--brokers {brokers!r} is not a list of broker ids such as 1,2,4") from None
    missing = [broker for broker in wanted if broker not in live]
    if missing:
        raise ValueError(f"broker {missing[0]} is not live, {', '.join(map(str, sorted(live)))} are")
    return {broker: live[broker] for broker in wanted}


def _placement(admin: "Admin", topics: Sequence[str]) -> dict[Partition, tuple[int, ...]]:
    """Return the replicas of each partition, or the target replicas of a partition that is being reassigned."""
    found = partitions_of(admin.describe_topics(topics, from_controller=True))
    return {where: partition.assignment.target for where, partition in found.items()}


def _throttle(
    admin: "Admin", moves: Mapping[Partition, tuple[int, ...]], bytes_per_second: int, validate_only: bool
) -> bool:
    """Set the throttle of moves; return False when no move copies records, so that no throttle is needed."""
    found = partitions_of(admin.describe_topics(sorted({topic for topic, _ in moves}), from_controller=True))
    throttle = plan_throttle({where: partition.assignment.origin for where, partition in found.items()}, moves)
    if not validate_only:
        set_throttle(admin, throttle, bytes_per_second)
    return bool(throttle.topics)


def _after_status(admin: "Admin", wanted: Mapping[Partition, tuple[int, ...]], rows: Sequence[Row]) -> None:
    """Remove the throttle of a completed plan; without a plan, warn about a throttle while no move runs."""
    if any(row["state"] not in ("done", _GONE) for row in rows) or admin.list_partition_reassignments():
        return
    if wanted:
        _remove_throttles(
            admin, [topic for topic, _ in wanted], (broker for target in wanted.values() for broker in target)
        )
        return
    slowed = throttled_brokers(admin)
    if slowed:
        brokers = ", ".join(map(str, slowed))
        click.echo(f"no move runs but brokers {brokers} are throttled: run reassign status PLAN.json", err=True)


def _remove_throttles(admin: "Admin", topics: Iterable[str], brokers: Iterable[int]) -> None:
    lifted = lift_throttle(admin, topics, brokers)
    if lifted is not None:
        click.echo(f"throttle removed from {lifted}", err=True)


def _status_rows(admin: "Admin", wanted: Mapping[Partition, tuple[int, ...]], progress: Progress) -> list[Row]:
    moves = list_moves(admin, list(wanted) or None)
    speeds = measure_speeds(admin, moves, progress, time.monotonic())
    if moves and all(speed.bytes_per_second is None for speed in speeds.values()):
        # A speed needs two measurements.
        time.sleep(_WATCH_EVERY_S)
        moves = list_moves(admin, list(wanted) or None)
        speeds = measure_speeds(admin, moves, progress, time.monotonic())
    throttled = throttled_brokers(admin) if moves else {}
    rows: dict[Partition, dict[str, Any]] = {
        move.topic_partition: move_row(move, speeds.get(move.topic_partition, NO_SPEED), throttled) for move in moves
    }
    missing = {where: target for where, target in wanted.items() if where not in rows}
    if missing:
        placed = _describe_partitions(admin, {topic for topic, _ in missing})
        rows |= {where: _row_not_running(where, target, placed.get(where)) for where, target in missing.items()}
    return [rows[key] for key in sorted(rows)]


def _describe_partitions(admin: "Admin", topics: set[str]) -> dict[Partition, "PartitionDescription"]:
    """Return the partitions of the topics that exist."""
    try:
        found = admin.describe_topics(sorted(topics), from_controller=True)
    except UnknownTopicOrPartitionError:
        found = [topic for topic in admin.describe_topics(from_controller=True) if topic.name in topics]
    return partitions_of(found)


def _row_not_running(where: Partition, target: tuple[int, ...], known: "PartitionDescription | None") -> dict[str, Any]:
    """Return the row of a partition of the plan that has no running reassignment."""
    done = known is not None and tuple(known.replicas) == target
    state, reason = "done" if done else "not started", None
    if known is None:
        state, reason = _GONE, "the partition does not exist"
    elif not done:
        reason = f"replicas are {','.join(map(str, known.replicas))}"
    return {
        "partition": f"{where[0]}/{where[1]}",
        "target": list(target),
        "adding": [],
        "removing": [],
        "isr": [] if known is None else list(known.isr),
        "leader": None if known is None else known.leader,
        "state": state,
        "bytes_left": 0 if done else None,
        "bytes_per_s": None,
        "eta_s": None,
        "throttle": None,
        "reason": reason,
    }


def _partition(text: str) -> Partition:
    topic, index = parse_partition(text)
    if index is None:
        raise click.BadParameter(f"{text!r} is not TOPIC/PARTITION")
    return topic, index


def _outcome(result: "ReassignmentResult", verb: str, validate_only: bool = False) -> Row:
    """Return the row of a partition: whether its move was started or cancelled, and the error."""
    topic, index = result.topic_partition
    done = result.error is None and not validate_only
    return {"partition": f"{topic}/{index}", verb: done, **error_fields(result.error)}


def _tell_failures(results: Sequence[Any], output: str) -> None:
    """Print the partition and the reason of every failure, and exit with the code of the last failure."""
    failed = [result for result in results if result.error is not None]
    if not failed:
        return
    if output != "table":  # the error of each row is printed
        raise failed[-1].error
    for result in failed:
        topic, index = result.topic_partition
        click.echo(f"{result.error.code.name}: {topic}/{index}: {result.error}", err=True)
    raise SystemExit(exit_code_of(failed[-1].error))
