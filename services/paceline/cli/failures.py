"""Report the errors of commands, and end with their exit codes."""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import click
import grpc

from paceline.cli.connection import address_hint
from paceline.cli.exit_codes import INTERRUPTED, LOCAL_FAILURE, RPC_FAILURE, USAGE
from paceline.model.errors import (
    ClusterAuthorizationError,
    GroupAuthorizationError,
    NotControllerError,
    PacelineError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
)
from paceline.rpc.errors import STATUS_OF_CODE


@contextmanager
def reported(output: str = "table") -> Iterator[None]:
    """Print an error as one line on stderr (as JSON with ``-o json`` or ``ndjson``) and exit with its exit code."""
    try:
        yield
    except PacelineError as error:
        _tell(output, error.code.name, str(error), _hint(error))
        sys.exit(exit_code_of(error))
    except grpc.RpcError as error:
        call = error if isinstance(error, grpc.Call) else None
        code = call.code() if call else grpc.StatusCode.UNKNOWN
        _tell(output, code.name, str(call.details() if call else error))
        sys.exit(RPC_FAILURE + int(code.value[0]))
    except BrokenPipeError:
        end_quietly()
    except ValueError as error:
        _tell(output, "INVALID_ARGUMENT", str(error))
        sys.exit(USAGE)
    except OSError as error:
        _tell(output, "LOCAL_FAILURE", os_error_text(error))
        give_up_unwritten()
        sys.exit(LOCAL_FAILURE)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)


def exit_code_of(error: PacelineError) -> int:
    """Return the exit code of a command that ends with this error."""
    status = STATUS_OF_CODE.get(error.code, grpc.StatusCode.UNKNOWN)
    return RPC_FAILURE + int(status.value[0])


def _hint(error: PacelineError) -> str | None:
    """Return a hint: where the addresses come from, how to name a partition, or how a principal gets rights."""
    from paceline_client.errors import BootstrapError

    if isinstance(error, TopicAuthorizationError | GroupAuthorizationError | ClusterAuthorizationError):
        return "'paceline whoami' shows the principal; a super user gives it rights with 'paceline acl add'"
    if isinstance(error, UnknownTopicOrPartitionError) and (found := re.search(r"\b([\w.-]+)-([0-9]+)\b", str(error))):
        return f"partition {found[2]} of topic {found[1]} is written {found[1]}/{found[2]}"
    return address_hint() if isinstance(error, BootstrapError | NotControllerError) else None


def os_error_text(error: OSError) -> str:
    """Return file name and reason of an operating system error, without the errno."""
    if error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror


def end_quietly() -> NoReturn:
    """Exit with 0 because the reader closed the pipe; discard the output that is still buffered."""
    _discard_stdout()
    sys.exit(0)


def give_up_unwritten() -> None:
    """Discard buffered output, so that the flush at exit does not fail with another message and exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()


def _discard_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def confirm(question: str) -> None:
    """Ask before a change that cannot be undone; end with exit code 1 unless the answer is yes."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if not sys.stdin.isatty():
            click.echo("\nno answer from stdin: --yes confirms the change", err=True)
        raise


def check_partition(topic: str, indexes: Sequence[int], index: int | None) -> None:
    """Refuse a partition that the topic does not have; None stands for all partitions.

    Raises:
        UnknownTopicOrPartitionError: the partition does not exist.
    """
    if index is not None and index not in indexes:
        raise UnknownTopicOrPartitionError(f"topic {topic} has {len(indexes)} partitions, no partition {index}")


def _tell(output: str, reason: str, message: str, hint: str | None = None) -> None:
    if output in {"json", "ndjson"}:
        fields = {"reason": reason, "message": message, "hint": hint}
        click.echo(json.dumps({"error": {key: text for key, text in fields.items() if text is not None}}), err=True)
    else:
        click.echo(f"{reason}: {message}" + (f"\n{hint}" if hint else ""), err=True)
