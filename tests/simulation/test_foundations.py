"""The simulator's own parts: time, network, disk, mirrors of logs, shrinking."""

import random

import pytest

from tests.simulation.disk import SimulatedDisk
from tests.simulation.fault_schedule import draw_faults
from tests.simulation.network import LinkQuality, Network, Peer, Unreachable
from tests.simulation.observed_log import Mirror
from tests.simulation.profile import draw_profile
from tests.simulation.run import Run
from tests.simulation.shrink import shrink
from tests.simulation.world import NodeScheduler, Skew, World
from tests.support.virtual_time import VirtualTime

# Time


def test_callbacks_run_in_order_of_time_and_cancelled_ones_never() -> None:
    world = World(1)
    seen: list[str] = []
    world.after(2_000, lambda: seen.append("b"))
    world.after(1_000, lambda: seen.append("a"))
    world.after(1_500, lambda: seen.append("never")).cancel()
    world.run_until(5_000)
    assert seen == ["a", "b"]
    assert world.now_us == 5_000


def test_a_loop_in_which_time_stands_still_fails_after_a_number_of_steps() -> None:
    world, time = World(1), VirtualTime()

    def again() -> None:
        world.after(0, again)

    def once_more() -> None:
        time.call_soon(once_more)

    again()
    with pytest.raises(AssertionError, match="100000 callbacks at 0 us"):
        world.run_until(1)
    once_more()
    with pytest.raises(AssertionError, match="still busy at 1000000"):
        time.run_for(1)


def test_random_streams_depend_on_seed_and_label_only() -> None:
    assert World(7).chance("x").random() == World(7).chance("x").random()
    assert World(7).chance("x").random() != World(7).chance("y").random()
    assert World(7).chance("x").random() != World(8).chance("x").random()


def test_a_paused_process_catches_up_in_order_and_a_dead_one_does_not_run() -> None:
    world = World(1)
    seen: list[int] = []
    node = NodeScheduler(world, Skew())
    node.pause()
    node.call_later(1, lambda: seen.append(1))
    node.call_later(2, lambda: seen.append(2))
    world.run_until(10_000)
    assert seen == []
    node.resume()
    assert seen == [1, 2]
    node.call_later(1, lambda: seen.append(3))
    node.kill()
    world.run_until(20_000)
    assert seen == [1, 2]


def test_a_callback_that_raises_is_reported_and_the_process_continues() -> None:
    world = World(1)
    errors: list[Exception] = []
    seen: list[int] = []
    node = NodeScheduler(world, Skew(), errors.append)
    node.call_soon(lambda: 1 // 0)  # type: ignore[arg-type]
    node.call_soon(lambda: seen.append(1))
    world.run_until(1_000)
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert seen == [1]


# Network


def _pair(world: World, quality: LinkQuality | None = None) -> tuple[Network, Peer, Peer]:
    network = Network(world, quality or LinkQuality())
    peers = [Peer(name, NodeScheduler(world, Skew())) for name in ("a", "b")]
    for peer in peers:
        network.attach(peer)
    return network, peers[0], peers[1]


def test_a_call_gets_its_answer_once() -> None:
    world = World(1)
    network, a, _ = _pair(world, LinkQuality(duplicate=1.0))
    handled: list[int] = []
    answers: list[object] = []

    def handle(reply):  # type: ignore[no-untyped-def]
        handled.append(1)
        reply("yes")

    network.call(a, "b", handle, 1_000, answers.append)
    world.run_until(2_000_000)
    assert answers == ["yes"]
    assert len(handled) == 2


@pytest.mark.parametrize("cut", [("a", "b"), ("b", "a")])
def test_a_cut_in_either_direction_is_a_deadline_for_the_caller(cut: tuple[str, str]) -> None:
    world = World(1)
    network, a, _ = _pair(world)
    network.cut(*cut)
    answers: list[object] = []
    network.call(a, "b", lambda reply: reply("yes"), 1_000, answers.append)
    world.run_until(999_000)
    assert answers == []
    world.run_until(1_001_000)
    assert isinstance(answers[0], Unreachable)


def test_the_death_of_the_called_process_is_reported_before_the_deadline() -> None:
    world = World(1)
    network, a, _ = _pair(world)
    answers: list[object] = []
    network.call(a, "b", lambda _reply: None, 60_000, answers.append)
    world.run_until(10_000)
    network.detach("b")
    world.run_until(20_000)
    assert isinstance(answers[0], Unreachable)


# Disk


def test_a_process_crash_loses_nothing_and_a_loss_of_power_keeps_synced_data() -> None:
    kept = set()
    for seed in range(30):
        disk = SimulatedDisk(lambda: 0, random.Random(seed))
        disk.make_directory("/d")
        disk.append("/d/f", b"durable")
        disk.sync("/d/f")
        disk.sync_directory("/d")
        disk.append("/d/f", b"-maybe")
        disk.crash_process()
        assert disk.read_at("/d/f", 0, 100) == b"durable-maybe"
        disk.lose_power()
        content = disk.read_at("/d/f", 0, 100)
        assert content.startswith(b"durable")
        kept.add(len(content))
    assert {7, 13} <= kept


def test_an_unsynced_name_may_be_lost_with_the_power() -> None:
    found = set()
    for seed in range(20):
        disk = SimulatedDisk(lambda: 0, random.Random(seed))
        disk.make_directory("/d")
        disk.append("/d/f", b"x")
        disk.sync("/d/f")
        disk.lose_power()
        found.add(disk.exists("/d/f"))
    assert found == {True, False}


# Mirrors


def test_mirrors_agree_as_far_as_their_batches() -> None:
    one, other = Mirror(), Mirror()
    for mirror in (one, other):
        mirror.add(0, 3, 0, 111)
    one.add(3, 5, 0, 222)
    other.add(3, 5, 1, 222)
    assert one.chain_at(3) == other.chain_at(3)
    assert one.chain_at(5) != other.chain_at(5)
    assert one.chain_at(4) is None
    assert one.batch_at(4) == (0, 222)
    removed = one.cut(4)
    assert (one.end, removed.ends) == (3, [5])


# Schedules


def test_shrinking_keeps_only_the_needed_faults() -> None:
    assert shrink(list(range(40)), lambda items: {3, 17} <= set(items)) == [3, 17]
    assert shrink([1, 2, 3], lambda _items: True) == []


def test_removing_a_fault_does_not_change_the_others() -> None:
    world = World(21)
    profile = draw_profile(world)
    faults = draw_faults(world, profile)
    assert faults == draw_faults(World(21), profile)
    assert len(faults) > 2
    shorter = Run(21, faults[1:])
    assert shorter.faults == faults[1:]
    assert shorter.profile == profile


def test_files_of_a_renamed_directory_do_not_reappear_under_its_old_name() -> None:
    for seed in range(20):
        disk = SimulatedDisk(lambda: 0, random.Random(seed))
        disk.make_directory("/data/t-0")
        disk.append("/data/t-0/0.log", b"a")
        disk.rename("/data/t-0", "/data/t-0.gone-delete")
        disk.sync_directory("/data")
        disk.lose_power()
        assert disk.list_directory("/data")[0].name == "t-0.gone-delete"
        assert not disk.exists("/data/t-0/0.log")


@pytest.mark.parametrize("then", ["rename", "remove"])
def test_names_removed_from_a_renamed_directory_do_not_reappear_under_its_old_name(then: str) -> None:
    for seed in range(20):
        disk = SimulatedDisk(lambda: 0, random.Random(seed))
        disk.make_directory("/data/t-0")
        for name in ("/data/t-0/0.log", "/data/t-0/5.log"):
            disk.append(name, b"old")
            disk.sync(name)
        disk.sync_directory("/data/t-0")
        disk.remove("/data/t-0/0.log")
        if then == "rename":
            disk.rename("/data/t-0", "/data/t-0.x-stray")
        else:
            disk.remove_tree("/data/t-0")
        disk.sync_directory("/data")
        disk.make_directory("/data/t-0")
        disk.lose_power()
        assert [path for path in disk.paths() if path.startswith("/data/t-0/")] == []
        assert disk.exists("/data/t-0.x-stray/5.log") is (then == "rename")
