"""Whether the controller that brokers name is in office: they remember the last one, also when it is dead."""

from typing import TYPE_CHECKING, Final

from paceline.model.errors import PacelineError

if TYPE_CHECKING:
    from paceline_client import ClusterDescription

_ANSWER_MS: Final = 5_000


def why_not_in_office(found: "ClusterDescription") -> str | None:
    """Ask the controller that somebody named; return None when it answers as the active one, else what is wrong."""
    from paceline_client import Admin

    if found.controller_id is None or not found.controller_address:
        return "no controller is in office"
    who = f"controller {found.controller_id} of epoch {found.controller_epoch}"
    try:
        with Admin(found.controller_address, describe_timeout_ms=_ANSWER_MS) as admin:
            answer = admin.describe_cluster()
    except PacelineError as error:
        return f"{who} does not answer: {error}"
    if answer.controller_id != found.controller_id:
        return f"{who} is not in office any more, {answer.controller_id or 'nobody'} is"
    return None
