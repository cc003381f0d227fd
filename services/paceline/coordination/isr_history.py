"""Replicas that left the ISR, or came back without their data: extra keys of a partition's state node.

KIP-966 calls the first "eligible leader replicas". Both lists are extra keys of the state's JSON. Every writer of an
ISR brings them forward with `next_extra`. A writer that drops them, Kafka's own for one, drops the knowledge of a loss,
too: such a partition is then elected as in Kafka.

Source: docs/protocol/zookeeper.md#isr-history; docs/decisions/0005-unclean-restart.md.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from paceline.coordination.znodes.json_codec import MAX_INT32, JsonValue

FORMER_MEMBERS = "former_members"
UNCLEAN_MEMBERS = "unclean_members"


@dataclass(frozen=True, slots=True)
class IsrHistory:
    """The two lists of one partition."""

    former: tuple[int, ...] = ()
    """Replicas that left an ISR which has had a single member ever since.

    With ``min.insync.replicas`` of 2 or more nothing was committed after they left, so each of them is complete.
    """
    unclean: tuple[int, ...] = ()
    """Members of the ISR that came back from an unclean restart: they stay listed, since an ISR is never empty, but may
    lack records that were committed. When there is one, all members are."""


NO_HISTORY = IsrHistory()


def history_of(extra: Mapping[str, JsonValue] | None) -> IsrHistory:
    """Return the history in a state's extra keys; a list that is not one of ours counts as empty."""
    if not extra:
        return NO_HISTORY
    return IsrHistory(_broker_ids(extra.get(FORMER_MEMBERS)), _broker_ids(extra.get(UNCLEAN_MEMBERS)))


def _broker_ids(value: JsonValue) -> tuple[int, ...]:
    if not isinstance(value, list):
        return ()
    ids = [item for item in value if type(item) is int and 0 <= item <= MAX_INT32]
    return tuple(sorted(set(ids))) if len(ids) == len(value) else ()


def next_extra(
    extra: Mapping[str, JsonValue] | None,
    old_isr: Collection[int],
    new_isr: Collection[int],
    assigned: Collection[int] | None = None,
    lost: Iterable[int] = (),
    failed: Iterable[int] = (),
    forget: bool = False,
) -> Mapping[str, JsonValue] | None:
    """Return the extra keys to write with a new ISR; keys that are not ours stay as they are.

    Args:
        extra: the keys in the state the write replaces.
        old_isr: its ISR.
        new_isr: the ISR that is written.
        assigned: replicas the partition keeps; one that goes is forgotten, for it may come again empty. None: all.
        lost: replicas whose data is not to be trusted any more.
        failed: replicas on failed log directories; the next disk there may be an empty one.
        forget: an unclean election begins a new history.
    """
    known = history_of(extra)
    if not forget and known == NO_HISTORY and not lost and (len(new_isr) > 1 or len(old_isr) <= 1):
        return extra
    former: set[int] = set()
    unclean: set[int] = set()
    if not forget:
        distrusted = {*lost, *known.unclean}
        unclean = distrusted & set(new_isr)
        if len(new_isr) == 1:
            former = {*known.former, *old_isr} - set(new_isr) - distrusted - set(failed)
            if assigned is not None:
                former &= set(assigned)
    found = {key: value for key, value in (extra or {}).items() if key not in (FORMER_MEMBERS, UNCLEAN_MEMBERS)}
    if former:
        found[FORMER_MEMBERS] = list[JsonValue](sorted(former))
    if unclean:
        found[UNCLEAN_MEMBERS] = list[JsonValue](sorted(unclean))
    return found
