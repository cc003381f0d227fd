"""`paceline doctor`: check one broker or controller before it serves."""

import os
from dataclasses import asdict

import click

from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import reported
from paceline.cli.output import output_option, show


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("role", type=click.Choice(["broker", "controller"]))
@click.argument("arguments", metavar="[SETTINGS]...", nargs=-1, type=click.UNPROCESSED)
@output_option
def doctor(role: str, arguments: tuple[str, ...], output: str) -> None:
    """Check a broker or controller of this machine: settings, disks, addresses, ZooKeeper, certificates, limits.

    It may run or not; nothing is changed. SETTINGS are those of its command line, such as --config FILE --broker-id 1;
    environment variables count, too. Exits with 3 when something is wrong. `paceline pipeline doctor` checks Spark.
    """
    with reported(output):
        from paceline.runtime.doctor import examine

        checks = examine(role, arguments, os.environ)
        show([asdict(check) for check in checks], output)
    if any(check.verdict == "wrong" for check in checks):
        raise SystemExit(NEGATIVE_VERDICT)
