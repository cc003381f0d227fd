"""Load the settings of a service; handle --help, --version and the other options of its command line."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from paceline import __version__
from paceline.runtime.lifecycle import ExitCode, die_with_parent
from paceline.runtime.settings import SettingsError, print_unchecked, process_options
from paceline.runtime.settings.help import help_text

S = TypeVar("S")


def settings_or_exit(
    kind: str,
    keys: Any,
    load: Callable[[Sequence[str], Mapping[str, str]], S],
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> S | ExitCode:
    """Return the settings, or the exit code after printing help, the version, the settings or an error.

    Args:
        kind: "broker" or "controller".
        keys: the class that declares the configuration keys of the service.
        load: returns the settings from command line and environment.
        arguments: the command line without the program name.
        environment: the environment variables.
    """
    options = None
    try:
        options, _ = process_options(arguments)
        if options.show_help:
            sys.stdout.write(help_text(kind, keys))
            return ExitCode.OK
        if options.show_version:
            sys.stdout.write(f"paceline {__version__}\n")
            return ExitCode.OK
        settings = load(arguments, environment)
    except SettingsError as failure:
        if options is not None and options.print_config:
            sys.stdout.write(f"{print_unchecked(keys, arguments, environment)}\n")
        sys.stderr.write(f"{failure}\n")
        return ExitCode.USAGE
    if options.print_config:
        sys.stdout.write(f"{settings.print_config()}\n")  # type: ignore[attr-defined]
        return ExitCode.OK
    if options.die_with_parent:
        die_with_parent()
    return settings
