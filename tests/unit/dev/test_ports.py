"""Which ports a local cluster takes."""

import socket
import subprocess
import sys

from paceline.dev.ports import choose_plan, default_plan, free_plan, taken

_CHOOSE = (
    "import sys; from paceline.dev.ports import choose_plan, default_plan; "
    "print(choose_plan(2, 3) == default_plan(2, 3), flush=True); sys.stdin.read()"
)


def test_the_documented_ports_are_all_different() -> None:
    plan = default_plan(3, 9)
    assert len(set(plan.all())) == len(plan.all())
    assert plan.brokers[0].listeners["CLIENT"] == 9102
    assert plan.controllers[0].listeners["CLIENT"] == 9082


def test_a_taken_port_moves_the_whole_cluster_elsewhere() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        assert taken([holder.getsockname()[1]]) == [holder.getsockname()[1]]
    plan = free_plan(2, 3)
    assert len(set(plan.all())) == len(plan.all())
    assert not set(plan.all()) & set(default_plan(2, 3).all())


def test_two_clusters_that_start_in_the_same_moment_do_not_choose_the_same_ports() -> None:
    # Neither listens yet: only the reservation keeps them apart.
    choosers = [
        subprocess.Popen([sys.executable, "-c", _CHOOSE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        answers = []
        for chooser in choosers:
            assert chooser.stdout is not None
            answers.append(chooser.stdout.readline().strip())
        assert answers.count("True") <= 1
    finally:
        for chooser in choosers:
            chooser.communicate(timeout=120)
    assert choose_plan(2, 3) is not None
