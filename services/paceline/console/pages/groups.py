"""Consumer groups: the list, and of one group its members, its lag per partition, and its lag over time."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from paceline.console.pages.view import Query, Row, matching, moment_text, paged, picked

_MOST_MEMBERS, _MOST_NAMED = 500, 200
_NAMES: Final = "group_id state member_count coordinator protocol_type"


def group_list(groups: Sequence[Any], lags: Mapping[str, int], left_out: int, query: Query) -> Row:
    """Return the list of groups with their latest sampled lag; that of ``left_out`` groups is not sampled."""
    by_id = {one.group_id: picked(one, _NAMES, group=one.group_id, lag=lags.get(one.group_id)) for one in groups}
    ids, numbers = paged(matching(list(by_id), query), query)
    return {"title": "Groups", "groups": [by_id[one] for one in ids], "left_out": left_out, **numbers}


def group_page(described: Any, rows: Sequence[Row], series: Sequence[tuple[int, int]], query: Query) -> Row:
    """Return the page of a group.

    Args:
        described: result of `Admin.describe_groups` for it.
        rows: result of `lag_rows`.
        series: sampled lag as (Unix time in ms, records), oldest first.
        query: parameters of the request.
    """
    shown, numbers = paged(rows, query)
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    members = [
        picked(
            one,
            "member_id group_instance_id client_id client_host",
            leads=one.member_id == described.leader,
            partition_count=len(one.assignment),
            partitions=[str(tp) for tp in one.assignment[:_MOST_NAMED]],
        )
        for one in described.members[:_MOST_MEMBERS]
    ]
    facts = {"state": described.state, "members": len(described.members), "lag": sum(lags) if lags else None}
    facts |= {"coordinator": f"broker {described.coordinator}", "generation": described.generation}
    return {
        "title": described.group_id or "(no name)",
        "group": described.group_id,
        "facts": facts | {"assignor": described.protocol or None},
        "samples": [{"time": moment_text(ms), "ms": ms, "lag": lag} for ms, lag in reversed(series)],
        "lag": list(shown),
        "members": members,
        **numbers,
    }
