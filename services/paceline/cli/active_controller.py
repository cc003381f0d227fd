"""Check the controller that brokers report as active: their cached metadata may name a dead controller."""

from typing import TYPE_CHECKING, Final

from paceline.cli.connection import CONNECT_MS
from paceline.model.errors import PacelineError

if TYPE_CHECKING:
    from paceline_client import ClusterDescription

_ANSWER_MS: Final = 5_000


def find_controller_problem(found: "ClusterDescription") -> str | None:
    """Call the reported controller; return None when it answers as the active controller, otherwise the problem."""
    from paceline_client import Admin

    if found.controller_id is None or not found.controller_address:
        return "no controller is active"
    who = f"controller {found.controller_id} of epoch {found.controller_epoch}"
    try:
        with Admin(found.controller_address, describe_timeout_ms=_ANSWER_MS, connect_timeout_ms=CONNECT_MS) as admin:
            answer = admin.describe_cluster()
    except PacelineError as error:
        return f"{who} does not answer: {error}"
    if answer.controller_id != found.controller_id:
        return f"{who} is no longer active, active controller: {answer.controller_id or 'none'}"
    return None
