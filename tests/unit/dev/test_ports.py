"""The ports of a local cluster."""

import socket
import subprocess
import sys
from pathlib import Path

from paceline.dev.ports import PORTS_FILE, choose_plan, default_plan, free_plan, load_plan, save_plan, taken

_CHOOSE = (
    "import sys; from paceline.dev import ports; "
    "print(ports.choose_plan(2, 3) == ports.default_plan(2, 3), *ports.free_plan(100, 100).all(), flush=True); "
    "sys.stdin.read()"
)


def test_the_documented_ports_are_all_different() -> None:
    plan = default_plan(3, 9)
    assert len(set(plan.all())) == len(plan.all())
    assert plan.brokers[0].listeners["CLIENT"] == 9102
    assert plan.controllers[0].listeners["CLIENT"] == 9082


def test_a_port_in_use_moves_all_ports_of_the_cluster() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        assert taken([holder.getsockname()[1]]) == [holder.getsockname()[1]]
    plan = free_plan(2, 3)
    assert len(set(plan.all())) == len(plan.all())
    assert not set(plan.all()) & set(default_plan(2, 3).all())


def test_two_clusters_that_start_at_the_same_time_choose_different_ports() -> None:
    # Neither listens yet: only the reservation keeps them apart.
    choosers = [
        subprocess.Popen([sys.executable, "-c", _CHOOSE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        answers = []
        for chooser in choosers:
            assert chooser.stdout is not None
            answers.append(chooser.stdout.readline().split())
        (first_has_defaults, *first), (second_has_defaults, *second) = answers
        assert (first_has_defaults, second_has_defaults) != ("True", "True")
        assert not set(first) & set(second), "of 12,000 ports each chose 901"
    finally:
        for chooser in choosers:
            chooser.communicate(timeout=120)
    assert choose_plan(2, 3) is not None


def test_an_offset_moves_every_documented_port_alike() -> None:
    moved = default_plan(2, 3, 1_000)
    assert moved.all() == [port + 1_000 for port in default_plan(2, 3).all()]


def test_a_second_start_uses_the_ports_of_the_first(tmp_path: Path) -> None:
    plan = free_plan(1, 2)
    save_plan(tmp_path, plan)
    assert load_plan(tmp_path, 1, 2) == plan
    assert load_plan(tmp_path, 2, 2) is None, "the plan has ports for one controller"
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", plan.brokers[1].metrics))
        holder.listen()
        assert load_plan(tmp_path, 1, 2) is None
    (tmp_path / PORTS_FILE).write_text('{"zookeeper": "x"}')
    assert load_plan(tmp_path, 1, 2) is None
