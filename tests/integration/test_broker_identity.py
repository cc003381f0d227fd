"""The broker id that follows from the settings and from the log directories."""

import pytest

from paceline.broker.service.broker_id import broker_id_of
from paceline.log.checkpoint import MetaProperties
from paceline.runtime.lifecycle import StartupError

FIVE, SIX, NONE = MetaProperties(5, "c"), MetaProperties(6, "c"), MetaProperties(None, "c")


@pytest.mark.parametrize(
    ("configured", "stored", "expected"),
    [
        (-1, {"/a": None}, None),
        (3, {"/a": None, "/b": None}, 3),
        (-1, {"/a": FIVE, "/b": None}, 5),
        (5, {"/a": FIVE, "/b": FIVE}, 5),
        (-1, {"/a": NONE}, None),
    ],
)
def test_the_broker_id_is_the_stored_id_or_the_configured_id_or_a_new_id(
    configured: int, stored: dict[str, MetaProperties | None], expected: int | None
) -> None:
    assert broker_id_of(configured, stored) == expected


def test_directories_of_another_broker_are_refused() -> None:
    with pytest.raises(StartupError, match=r"broker\.id is 3, but the log directories belong to broker 5"):
        broker_id_of(3, {"/a": FIVE})


def test_directories_of_different_brokers_are_refused() -> None:
    with pytest.raises(StartupError, match="belong to different brokers: /a: 5, /b: 6"):
        broker_id_of(-1, {"/b": SIX, "/a": FIVE})
