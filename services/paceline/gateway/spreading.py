"""Spread the partitions of a member over its streams."""

from collections.abc import Callable, Iterable, Mapping

from paceline.gateway.values import StreamId
from paceline.model.identifiers import TopicPartition


def spread(
    partitions: Iterable[TopicPartition],
    streams: Mapping[StreamId, Callable[[str], bool]],
    owners: Mapping[TopicPartition, StreamId],
) -> dict[TopicPartition, StreamId]:
    """Return the stream of each partition: even numbers of partitions with as few moves as possible.

    Args:
        partitions: the member's partitions.
        streams: tells for each stream whether it wants a topic.
        owners: the present stream of partitions that have one.

    Returns:
        The streams; a partition whose topic no stream wants is missing.
    """
    takers = {
        topic: [one for one, wants in streams.items() if wants(topic)] for topic in {tp.topic for tp in partitions}
    }
    counts = dict.fromkeys(streams, 0)
    found: dict[TopicPartition, StreamId] = {}
    waiting = []
    for tp in sorted(partitions):
        owner = owners.get(tp)
        if owner in counts and owner in takers[tp.topic]:
            found[tp] = owner
            counts[owner] += 1
        elif takers[tp.topic]:
            waiting.append(tp)
    for tp in waiting:
        taker = min(takers[tp.topic], key=lambda one: (counts[one], one))
        found[tp] = taker
        counts[taker] += 1
    # Each move lowers the sum of the squares of the counts, so the loop ends.
    moved = True
    while moved:
        moved = False
        for tp, owner in found.items():
            taker = min(takers[tp.topic], key=lambda one: (counts[one], one))
            if counts[taker] + 1 < counts[owner]:
                found[tp] = taker
                counts[owner] -= 1
                counts[taker] += 1
                moved = True
    return found
