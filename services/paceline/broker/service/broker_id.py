"""Find the broker's id: the configured id, the stored id, or a generated id."""

from collections.abc import Mapping

from paceline.log.checkpoint import MetaProperties
from paceline.runtime.lifecycle import ExitCode, StartupError


def broker_id_of(configured: int, stored: Mapping[str, MetaProperties | None]) -> int | None:
    """Return the broker's id, None when it must be generated.

    Args:
        configured: ``broker.id``, -1 when not set.
        stored: ``meta.properties`` of each log directory.

    Raises:
        StartupError: the directories belong to different brokers, or not to the configured broker.
    """
    kept = {
        directory: meta.broker_id
        for directory, meta in stored.items()
        if meta is not None and meta.broker_id is not None
    }
    ids = sorted(set(kept.values()))
    if len(ids) > 1:
        listed = ", ".join(f"{directory}: {broker_id}" for directory, broker_id in sorted(kept.items()))
        raise StartupError(f"the log directories belong to different brokers: {listed}", ExitCode.USAGE)
    if not ids:
        return configured if configured >= 0 else None
    if configured >= 0 and configured != ids[0]:
        raise StartupError(
            f"broker.id is {configured}, but the log directories belong to broker {ids[0]} (meta.properties)",
            ExitCode.USAGE,
        )
    return ids[0]
