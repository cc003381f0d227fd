"""Replicas that left the ISR, or returned without their data: extra keys of a partition's state node.

KIP-966 calls the first "eligible leader replicas". Both lists are extra keys of the state's JSON. Every writer of an
ISR must carry them over with `next_extra`. A writer that drops them, such as Kafka's own code, also drops the
record of a loss: the controller then elects a leader of the partition as Kafka does.

Source: docs/protocol/zookeeper.md#isr-history; docs/decisions/0005-unclean-restart.md.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from paceline.coordination.znodes.json_codec import MAX_INT32, JsonValue

FORMER_MEMBERS = "former_members"
UNCLEAN_MEMBERS = "unclean_members"


@dataclass(frozen=True, slots=True)
class IsrHistory:
    """The two lists of a partition."""

    former: tuple[int, ...] = ()
    """Replicas that left an ISR which has had a single member ever since.

    With ``min.insync.replicas`` of 2 or more no record was committed after they left, so each has all committed
    records.
    """
    unclean: tuple[int, ...] = ()
    """ISR members that returned from an unclean restart: they stay in the ISR, since it is never empty, but may lack
    committed records. If one ISR member is listed, all are."""


NO_HISTORY = IsrHistory()


def history_of(extra: Mapping[str, JsonValue] | None) -> IsrHistory:
    """Return the history in a state's extra keys; an invalid list counts as empty."""
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
    """Return the extra keys to write with a new ISR; keys of other writers are unchanged.

    Args:
        extra: the extra keys of the state that the write replaces.
        old_isr: the ISR of that state.
        new_isr: the ISR to write.
        assigned: replicas that stay assigned; a removed replica is forgotten, since it may return empty. None means
            all.
        lost: replicas whose data cannot be trusted any more.
        failed: replicas on failed log directories, whose disk may be replaced by an empty one.
        forget: whether an unclean election begins a new history.
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
