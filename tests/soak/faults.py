"""The faults of the soak. Each fault is over, and its process running, when its function returns."""

import contextlib
import random
import time
from collections.abc import Callable

from paceline.dev.local_cluster import Node
from tests.soak.sandbox import Sandbox
from tests.support.embedded_zookeeper import pause, resume

SESSION_S = 6.0
Fault = Callable[[Sandbox, random.Random], str]


def kill_broker(cluster: Sandbox, chance: random.Random) -> str:
    """Kill a broker; start it again at once, soon, or after its session has ended."""
    node = _broker(cluster, chance)
    cluster.kill(node)
    away_s = chance.choice([0.0, chance.uniform(0.0, 3.0), chance.uniform(SESSION_S, 1.5 * SESSION_S)])
    time.sleep(away_s)
    cluster.restart(node)
    return f"{node.name} killed, {away_s:.1f} s away"


def pause_broker(cluster: Sandbox, chance: random.Random) -> str:
    """Pause a broker for less or more than its session timeout."""
    return _pause(cluster, _broker(cluster, chance), chance.uniform(0.3, 3.0) * SESSION_S)


def pause_controller(cluster: Sandbox, chance: random.Random) -> str:
    """Pause the active controller or the other controller."""
    node = cluster.controller(chance.randrange(cluster.controllers))
    return _pause(cluster, node, chance.uniform(0.3, 3.0) * SESSION_S)


def kill_controller(cluster: Sandbox, chance: random.Random) -> str:
    """Kill a controller and start it again."""
    node = cluster.controller(chance.randrange(cluster.controllers))
    cluster.kill(node)
    away_s = chance.uniform(0.0, 1.5 * SESSION_S)
    time.sleep(away_s)
    cluster.restart(node)
    return f"{node.name} killed, {away_s:.1f} s away"


def pause_zookeeper(cluster: Sandbox, chance: random.Random) -> str:
    """Pause ZooKeeper for less or more than the session timeout."""
    assert cluster.zookeeper is not None
    paused_s = chance.uniform(0.3, 2.5) * SESSION_S
    pause(cluster.zookeeper)
    try:
        time.sleep(paused_s)
    finally:
        resume(cluster.zookeeper)
    return f"ZooKeeper paused for {paused_s:.1f} s"


def cut_one_way(cluster: Sandbox, chance: random.Random) -> str:
    """Drop packets from a broker to another broker, to ZooKeeper or to the controllers, but not their packets to it."""
    assert cluster.network is not None and cluster.ports is not None
    broker_id = chance.randint(1, cluster.brokers)
    others = [one for one in range(1, cluster.brokers + 1) if one != broker_id]
    rest = cluster.network.address(0)
    target = chance.choice(["broker", "broker", "zookeeper", "controllers"])
    rules: list[tuple[str, ...]] = []
    if target == "broker":
        other = chance.choice(others)
        target = f"broker-{other}"
        rules.append(("-d", cluster.network.address(other)))
    elif target == "zookeeper":
        rules.append(("-d", rest, "-p", "tcp", "--dport", str(cluster.ports.zookeeper)))
    else:
        for ports in cluster.ports.controllers:
            control = str(ports.listeners["CONTROL"])
            rules.append(("-d", rest, "-p", "tcp", "--dport", control))
    cut_s = chance.uniform(0.5, 3.0) * SESSION_S
    for rule in rules:
        cluster.network.drop(broker_id, *rule)
    try:
        time.sleep(cut_s)
    finally:
        cluster.network.heal(broker_id)
    return f"broker-{broker_id} cut one way from {target} for {cut_s:.1f} s"


def fill_disk(cluster: Sandbox, chance: random.Random) -> str:
    """Fill a broker's disk until the broker ends or a time limit passes, then free the space and start it again."""
    assert cluster.disks is not None
    node = _broker(cluster, chance)
    cluster.disks.fill(node.node_id)
    full_s = chance.uniform(5.0, 15.0)
    until = time.monotonic() + full_s
    while time.monotonic() < until and node.running:
        time.sleep(0.1)
    ended = not node.running
    cluster.disks.empty(node.node_id)
    # A directory that failed stays offline until the next start.
    if node.running:
        with contextlib.suppress(Exception):
            cluster.terminate(node)
    cluster.restart(node)
    return f"{node.name}'s disk full for {full_s:.1f} s, the broker {'ended' if ended else 'ran on'}"


def slow_disk(cluster: Sandbox, chance: random.Random) -> str:
    """Delay the writes of a broker."""
    broker_id, write_ms = chance.randint(1, cluster.brokers), chance.choice([5, 20, 100])
    slow_s = chance.uniform(5.0, 20.0)
    cluster.slow_disk(broker_id, write_ms)
    try:
        time.sleep(slow_s)
    finally:
        cluster.slow_disk(broker_id, 0)
    return f"broker-{broker_id}'s disk slow by {write_ms} ms a write for {slow_s:.1f} s"


def possible(cluster: Sandbox) -> dict[str, Fault]:
    """Return the faults that this machine can inject."""
    found: dict[str, Fault] = {
        "kill-broker": kill_broker,
        "pause-broker": pause_broker,
        "kill-controller": kill_controller,
        "pause-controller": pause_controller,
        "pause-zookeeper": pause_zookeeper,
    }
    if cluster.network is not None:
        found["cut-one-way"] = cut_one_way
    if cluster.disks is not None:
        found["full-disk"] = fill_disk
    if cluster.can_slow_disks:
        found["slow-disk"] = slow_disk
    return found


def _broker(cluster: Sandbox, chance: random.Random) -> Node:
    return cluster.broker(chance.randint(1, cluster.brokers))


def _pause(cluster: Sandbox, node: Node, paused_s: float) -> str:
    cluster.pause(node)
    try:
        time.sleep(paused_s)
    finally:
        cluster.resume(node)
    return f"{node.name} paused for {paused_s:.1f} s"
