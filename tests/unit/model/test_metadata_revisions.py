"""Revisions of metadata: the topics that changed since a reader's revision."""

import random

from paceline.model.metadata_revisions import CLUSTER, MetadataPosition, MetadataRevisions


def names(revisions: MetadataRevisions, since: MetadataPosition | None) -> list[str]:
    return [name for name, _ in revisions.since(since, 100).entries]


def now(revisions: MetadataRevisions) -> MetadataPosition:
    return MetadataPosition(revisions.revision, 0)


def test_a_new_reader_gets_everything_and_then_only_changes() -> None:
    revisions = MetadataRevisions()
    revisions.changed(["a", "b"], cluster=(1, 2))
    first = revisions.since(None, 100)
    assert [name for name, _ in first.entries] == ["a", "b", CLUSTER]
    assert first.is_snapshot and not first.more
    assert names(revisions, first.position) == []
    revisions.changed(["b"], cluster=(1, 2))
    again = revisions.since(first.position, 100)
    assert ([name for name, _ in again.entries], again.is_snapshot) == (["b"], False)


def test_a_topic_that_changes_often_has_one_entry() -> None:
    revisions = MetadataRevisions()
    for _ in range(1_000):
        revisions.changed(["a", "b"], cluster=None)
    assert names(revisions, None) == ["a", "b"]
    assert revisions.revision == 2_000


def test_brokers_and_controller_count_only_when_they_differ() -> None:
    revisions = MetadataRevisions()
    revisions.changed([], cluster=("one",))
    at = now(revisions)
    revisions.changed([], cluster=("one",))
    assert names(revisions, at) == []
    revisions.changed([], cluster=("two",))
    assert names(revisions, at) == [CLUSTER]


def test_a_deletion_is_sent_to_readers_that_had_the_topic() -> None:
    revisions = MetadataRevisions()
    revisions.changed(["a", "b"], cluster=None)
    at = now(revisions)
    revisions.topic_deleted("a")
    assert names(revisions, at) == ["a"]


def test_a_reader_that_returns_too_late_gets_everything_again() -> None:
    revisions = MetadataRevisions(deleted_topics_kept=2)
    revisions.changed(["a", "b", "c", "d"], cluster=None)
    early = now(revisions)
    for topic in ("a", "b"):
        revisions.topic_deleted(topic)
    late = now(revisions)
    revisions.topic_deleted("c")
    assert revisions.since(early, 100).is_snapshot, "the deletion of a is no longer recorded"
    assert not revisions.since(late, 100).is_snapshot
    assert names(revisions, None) == ["d", "b", "c"]


def test_a_revision_above_the_present_one_gets_everything_again() -> None:
    assert MetadataRevisions().since(MetadataPosition(5, 0), 100).is_snapshot


def test_a_restart_begins_a_new_generation() -> None:
    revisions = MetadataRevisions()
    revisions.changed(["a"], cluster=(1,))
    revisions.restart()
    assert (revisions.generation, revisions.revision, names(revisions, None)) == (1, 0, [])
    revisions.changed([], cluster=(1,))
    assert names(revisions, None) == [CLUSTER]


def test_every_change_calls_the_listener() -> None:
    heard: list[int] = []
    revisions = MetadataRevisions(on_change=lambda: heard.append(revisions.revision))
    revisions.changed(["a"], cluster=None)
    revisions.topic_deleted("a")
    revisions.restart()
    assert heard == [1, 2, 0]


def test_a_reader_in_small_steps_ends_with_the_present_state_despite_changes() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        revisions = MetadataRevisions(deleted_topics_kept=rng.randrange(1, 6))
        actual: dict[str, int] = {}
        known: dict[str, int] = {}
        at: MetadataPosition | None = None
        for step in range(300):
            topic = f"t{rng.randrange(12)}"
            if rng.random() < 0.3 and topic in actual:
                del actual[topic]
                revisions.topic_deleted(topic)
            elif rng.random() < 0.6:
                actual[topic] = step
                revisions.changed([topic], cluster=None)
            if rng.random() < 0.2:
                at, _ = read(revisions, at, actual, known, rng.randrange(1, 4))
        more = True
        for _ in range(30):
            at, more = read(revisions, at, actual, known, 2) if more else (at, more)
        assert (known, more) == (actual, False), f"seed {seed}"


def read(
    revisions: MetadataRevisions, at: MetadataPosition | None, actual: dict[str, int], known: dict[str, int], most: int
) -> tuple[MetadataPosition, bool]:
    found = revisions.since(at, most)
    if found.is_snapshot:
        known.clear()
    for name, _ in found.entries:
        known.pop(name, None)
        if name in actual:
            known[name] = actual[name]
    return found.position, found.more
