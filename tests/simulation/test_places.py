"""Runs count the places that they reach, and ambushes strike there."""

from dataclasses import replace

from tests.simulation.fault_schedule import STRIKES
from tests.simulation.faults import FaultInjector
from tests.simulation.places import AMBUSHES, PLACES, Places, below_floor
from tests.simulation.profile import draw_base_profile
from tests.simulation.run import Run, run_seed
from tests.simulation.world import World

PLACE = "a replica is about to join an ISR"


def test_a_place_that_too_few_seeds_reach_is_named() -> None:
    enough = {place: floors[True] for place, floors in PLACES.items()}
    assert below_floor(enough, 300, wild=True) == []
    assert below_floor(enough | {PLACE: enough[PLACE] - 1}, 300, wild=True) == [PLACE]
    assert below_floor({place: count // 2 for place, count in enough.items()}, 150, wild=True) == []
    assert PLACE in below_floor(dict.fromkeys(PLACES, 0), 40, wild=False)
    assert below_floor(dict.fromkeys(PLACES, 0), 1, wild=False) == []


def test_few_wild_seeds_reach_half_of_the_places() -> None:
    results = [run_seed(seed, wild=True) for seed in range(1, 7)]
    reached = [place for place in PLACES if any(result.places[place] for result in results)]
    assert len(reached) >= len(PLACES) // 2, [place for place in PLACES if place not in reached]


def test_each_ambush_strikes_once_and_learns_the_brokers_of_its_place() -> None:
    struck: list[tuple[str, int, int | None]] = []
    places = Places()
    for name in ("first", "second"):
        places.wait_at(PLACE, lambda *brokers, name=name: struck.append((name, *brokers)))
    places.reach("a follower diverges", 9)
    for broker_id in (1, 2, 3):
        places.reach(PLACE, broker_id, 4)
    assert struck == [("first", 1, 4), ("second", 2, 4)]
    assert places.reached[PLACE] == 3


def test_an_ambush_strikes_the_broker_at_its_place() -> None:
    profile = replace(
        draw_base_profile(World(1)),
        brokers=3,
        replication_factor=3,
        fault_count=0,
        operation_count=0,
        ambushes=4,
        ambushed=("a leader begins a new session",),
        strikes=("crash-broker",),
        fault_kinds=("zk-expire",),
    )
    lines: list[str] = []
    Run(1, profile=replace(profile, fault_count=10), tell=lines.append).run()
    struck = [number for number, line in enumerate(lines) if "faults" in line and "crash-broker" in line]
    assert struck


def test_the_faults_and_places_of_ambushes_exist() -> None:
    assert set(AMBUSHES) <= set(PLACES)
    assert {kind for plans in AMBUSHES.values() for kinds in plans for kind in kinds} <= set(STRIKES)
    assert all(hasattr(FaultInjector, "_" + kind.replace("-", "_")) for kind in STRIKES)
