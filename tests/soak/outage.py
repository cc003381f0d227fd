"""ZooKeeper and all controllers are down for minutes under load; then a leader is cut off from its cluster.

Without ZooKeeper and controllers no leader can be replaced, so leaders whose followers fetch continue, and every write
with acks=all succeeds. A leader that is cut off from brokers, ZooKeeper and controllers, but not from clients, stops
answering as leader within `BOUND_S`, because it has a successor.
"""

import time
from collections.abc import Callable
from pathlib import Path

import grpc

from paceline.v1 import log_service_pb2 as pb
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from tests.soak.kills import wait_full_isr
from tests.soak.rounds import BROKERS, CONTROLLERS, PARTITIONS, TOPIC, Outcome, account, start_writers
from tests.soak.sandbox import Sandbox
from tests.support.stub_client import StubClient

GAP_S = 20.0
"""Longest time without an acknowledgement on a busy machine; one call may wait 18 s."""
BOUND_S = 9.0 + 3.0 + 3.0
"""The lease, a third of it, and a margin for a busy machine."""
WATCHED_S = 45.0


def outage(directory: Path, seconds: float, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run the soak once and return its results."""
    outcome = Outcome(rounds=1)
    with Sandbox(directory, BROKERS, CONTROLLERS, {"auto.leader.rebalance.enable": "false"}) as cluster:
        outcome.missing = cluster.missing
        cluster.start(say=say)
        writers = start_writers(cluster, pause_s=0.05)
        problem = wait_full_isr(cluster, 240.0, TOPIC, PARTITIONS)
        outcome.problems += [problem] if problem else []
        assert cluster.zookeeper is not None
        cluster.zookeeper.kill()
        for index in range(CONTROLLERS):
            cluster.kill(cluster.controller(index))
        before = [len(writer.acked) for writer in writers]
        for writer in writers:
            writer.longest_gap_s = 0.0
        say(f"ZooKeeper and {CONTROLLERS} controllers are down")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(min(30.0, max(0.0, until - time.monotonic())))
            say(f"{sum(len(writer.acked) for writer in writers) - sum(before):,} records acknowledged")
        gap_s = max(writer.longest_gap_s for writer in writers)
        say(f"longest time without an acknowledgement in the outage: {gap_s:.1f} s")
        if gap_s > GAP_S or any(len(writer.acked) == was for writer, was in zip(writers, before, strict=True)):
            outcome.problems.append(f"acks=all did not go through all the time: nothing for {gap_s:.1f} s")
        cluster.zookeeper.start()
        for index in range(CONTROLLERS):
            cluster.restart(cluster.controller(index))
        outcome.kinds["outage"] += 1
        problem = wait_full_isr(cluster, 240.0, TOPIC, PARTITIONS)
        outcome.problems += [problem] if problem else []
        if cluster.network is not None:
            outcome.problems += _cut_a_leader_off(cluster, say)
            outcome.kinds["deposed-leader"] += 1
        account(cluster, writers, outcome)
    return outcome


def _cut_a_leader_off(cluster: Sandbox, say: Callable[[str], None]) -> list[str]:
    assert cluster.network is not None and cluster.ports is not None
    network, ports = cluster.network, cluster.ports
    with StubClient(cluster.bootstrap.split(",")) as client:
        address = client.find_leader(TOPIC, 0)
        broker_id = next(node.node_id for node in cluster.nodes.values() if node.client_address == address)
        others = [network.address(one) for one in range(1, BROKERS + 1) if one != broker_id]
        rest, control = network.address(0), [plan.listeners["CONTROL"] for plan in ports.controllers]
        with grpc.insecure_channel(address) as channel:
            stub = LogServiceStub(channel)
            for other in others:
                network.drop(broker_id, "-d", other)
            for port in (ports.zookeeper, *control):
                network.drop(broker_id, "-d", rest, "-p", "tcp", "--dport", str(port))
            # Packets of controllers have the broker's CONTROL port as their destination.
            own = str(ports.brokers[broker_id - 1].listeners["CONTROL"])
            network.drop(broker_id, "-d", rest, "-p", "tcp", "--sport", own)
            cut = time.monotonic()
            last = cut
            try:
                while time.monotonic() < cut + WATCHED_S:
                    part = pb.ListOffsetsPartition(topic=TOPIC, partition=0, spec=pb.OFFSET_SPEC_LATEST)
                    (answer,) = stub.ListOffsets(pb.ListOffsetsRequest(partitions=[part]), timeout=30.0).partitions
                    if not answer.HasField("error"):
                        last = time.monotonic()
                    time.sleep(0.2)
            finally:
                network.heal(broker_id)
    say(f"a leader that was cut off answered as leader for {last - cut:.1f} s, of {WATCHED_S:g} s")
    problem = wait_full_isr(cluster, 240.0, TOPIC, PARTITIONS)
    late = [f"the leader that was cut off answered for {last - cut:.1f} s"] if last - cut > BOUND_S else []
    return late + ([problem] if problem else [])
