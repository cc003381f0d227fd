"""`paceline topic trim`: permanently delete records at the beginning of partitions."""

import click

from paceline.cli.completion import topic_names
from paceline.cli.connection import bootstrap_option, open_admin, parse_partition
from paceline.cli.failures import check_partition, confirm, reported
from paceline.cli.numbers import OFFSET
from paceline.cli.output import output_option, show
from paceline.model.errors import OffsetOutOfRangeError


@click.command()
@click.argument("which", nargs=-1, required=True, metavar="TOPIC[/PARTITION]...", shell_complete=topic_names)
@click.option("--before-offset", type=OFFSET, help="first offset to keep")
@click.option("--all", "everything", is_flag=True, help="delete all committed records")
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
@click.option("--dry-run", is_flag=True, help="show the records without deleting them")
@output_option
@bootstrap_option
def trim(
    which: tuple[str, ...],
    before_offset: int | None,
    everything: bool,
    yes: bool,
    dry_run: bool,
    output: str,
    bootstrap: str,
) -> None:
    """Permanently delete the records before an offset; returns when every live replica has deleted them."""
    if (before_offset is None) != everything:
        raise click.UsageError("give --before-offset N or --all")
    with reported(output):
        with open_admin(bootstrap) as admin:
            targets: dict[tuple[str, int], int] = {}
            rows = []
            for topic, index in dict.fromkeys(map(parse_partition, which)):
                (described,) = admin.describe_topics([topic])
                check_partition(topic, [each.partition for each in described.partitions], index)
                for view in admin.describe_replicas(topic, None if index is None else [index]):
                    end = view.high_watermark if before_offset is None else before_offset
                    if end > view.high_watermark:
                        raise OffsetOutOfRangeError(
                            f"{topic}/{view.partition}: offset {end} is beyond the high watermark"
                            f" {view.high_watermark}; nothing was deleted"
                        )
                    if (topic, view.partition) in targets:
                        continue
                    targets[topic, view.partition] = end
                    rows.append(
                        {
                            "partition": f"{topic}/{view.partition}",
                            "log_start": view.log_start_offset,
                            "before": end,
                            "records": max(0, end - view.log_start_offset),
                        }
                    )
            if dry_run:
                show(rows, output)
                return
            if not yes:
                lost = sum(int(str(row["records"])) for row in rows)
                confirm(f"permanently delete {lost} records of {len(rows)} partitions?")
            results = admin.delete_records(targets, raise_errors=False)
        outcome = [
            {
                "partition": str(each.topic_partition),
                "low_watermark": each.low_watermark,
                "error": None if each.error is None else each.error.code.name,
                "message": None if each.error is None else str(each.error),
            }
            for each in results
        ]
        show(outcome, output, ("partition", "low_watermark", "error"))
        failed = next((each.error for each in results if each.error is not None), None)
        if failed is not None:
            raise failed
