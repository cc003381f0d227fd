"""Controllers that lose ``/controller`` while their session continues, because the node was deleted by hand."""

from dataclasses import replace

from tests.simulation.profile import draw_profile
from tests.simulation.run import Run
from tests.simulation.world import World

SEEDS = (1, 2, 3, 4, 5, 6)


def evicted(seed: int) -> tuple[Run, list[str]]:
    """Run a seed with many evictions, while leaders die and brokers restart."""
    profile = replace(
        draw_profile(World(seed)),
        controllers=2,
        brokers=3,
        replication_factor=3,
        min_insync_replicas=2,
        zk_delay_ms=15.0,
        fault_kinds=("kill-leader", "bounce-broker"),
        fault_count=12,
        fault_ms=15_000,
        evictions=12,
    )
    lines: list[str] = []
    run = Run(seed, profile=profile, tell=lines.append)
    result = run.run()
    assert result.failures == {}, seed
    return run, lines


def test_a_controller_whose_node_was_deleted_writes_nothing_and_another_one_is_elected() -> None:
    refused = 0
    for seed in SEEDS:
        run, lines = evicted(seed)
        assert all(run.cluster.checks.verdicts.all[rule].exercised for rule in ("K1", "K2", "K8"))
        refused += sum("/controller_epoch changed since this controller's election" in line for line in lines)
    assert refused >= 3, "a controller that does not know it yet is stopped by the fence"
