"""Random faults against three cores, with a small controller that elects from the ISR: nothing acknowledged is lost.

The whole cluster has its own simulation; this one is small enough to run with every change of the broker's core.
"""

import random

import pytest

from paceline.log.log_config import LogConfig
from paceline.model.client_io import ProduceResult
from paceline.model.identifiers import NO_LEADER
from paceline.model.leader_and_isr import LeaderAndIsr
from tests.support.broker_cluster import TP, BrokerCluster
from tests.support.slow import slow_but_every

BROKERS = (1, 2, 3)


class History:
    """One run: requests, acknowledgements, and the faults between them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = BrokerCluster(
            BROKERS,
            log_config=LogConfig(min_insync_replicas=2, segment_bytes=2_000),
            replica_lag_time_max_ms=2_000,
            replica_fetch_max_bytes=self.rng.choice([200, 10_000]),
            zookeeper_session_timeout_ms=3_000,
        )
        self.cluster.decide(1, 0, BROKERS, is_new=True)
        self.sent = 0
        self.open: list[tuple[bytes, list[ProduceResult]]] = []
        self.acked: dict[int, bytes] = {}
        self.committed = 0

    @property
    def leader(self) -> int:
        return self.cluster.state().leader

    def up(self) -> list[int]:
        return [broker_id for broker_id in BROKERS if self.cluster[broker_id].up]

    def produce(self) -> None:
        target = self.rng.choice(self.up()) if self.up() else None
        leader = self.leader if self.rng.random() < 0.8 else target
        if leader is None or leader == NO_LEADER or not self.cluster[leader].up:
            return
        value = b"%d" % self.sent
        self.sent += 1
        self.open.append((value, self.cluster[leader].produce(value, timeout_ms=self.rng.choice([50, 5_000]))))

    def collect(self) -> None:
        for value, answer in self.open:
            if answer and answer[0].failure is None:
                offset = answer[0].base_offset
                assert self.acked.setdefault(offset, value) == value, f"two records acknowledged at {offset}"
        self.open = [pair for pair in self.open if not pair[1]]

    def elect(self) -> None:
        """Elect from the ISR, as a controller does after a failure or on request."""
        state = self.cluster.state()
        up = self.up()
        live = tuple(broker_id for broker_id in state.isr if broker_id in up)
        if live:
            leader, isr = self.rng.choice(live), live
        else:
            leader, isr = NO_LEADER, state.isr[-1:]
        to = [broker_id for broker_id in up if self.rng.random() < 0.85]
        self.cluster.decide(leader, state.leader_epoch + 1, isr, BROKERS, to=to)

    def catch_up(self) -> None:
        """Send the present decision to every broker, to most of them again."""
        state = self.cluster.state()
        decision = self.cluster.partition(
            state.leader, state.leader_epoch, state.isr, BROKERS, zk_version=state.zk_version
        )
        self.cluster.update_metadata()
        for broker_id in self.up():
            self.cluster.send(broker_id, decision)

    def crash(self) -> None:
        if len(self.up()) == len(BROKERS):
            broker = self.cluster[self.rng.choice(BROKERS)]
            session_id = broker.zookeeper.session_id
            broker.crash()
            self.cluster.server.expire(session_id)
            self.cluster.update_metadata()

    def boot(self) -> None:
        for broker_id in BROKERS:
            if not self.cluster[broker_id].up:
                broker = self.cluster.boot(broker_id, self.cluster[broker_id].files)
                self.cluster.time.run_until(lambda found=broker: found.node.ready, 20_000)
                self.elect()
                self.catch_up()

    def cut(self) -> None:
        one, other = self.rng.sample(BROKERS, 2)
        self.cluster.cuts.add((one, other))

    def heal(self) -> None:
        self.cluster.cuts.clear()
        for broker in self.cluster.brokers.values():
            broker.zookeeper.link.heal()

    def lose_session(self) -> None:
        broker = self.cluster[self.rng.choice(self.up())]
        if broker.zookeeper.session_id:
            self.cluster.server.expire(broker.zookeeper.session_id)

    def cut_zookeeper(self) -> None:
        self.cluster[self.rng.choice(self.up())].zookeeper.link.cut()

    def meddle(self) -> None:
        """Rewrite the state unchanged, so that the leader's version is outdated."""
        state = self.cluster.state()
        self.cluster.write_state(LeaderAndIsr(state.leader, state.leader_epoch, state.isr, 0, state.controller_epoch))

    def check(self) -> None:
        """Check that every live ISR member has all records below a valid leader's high watermark."""
        state = self.cluster.state()
        if state.leader == NO_LEADER or not self.cluster[state.leader].up:
            return
        hosted = self.cluster[state.leader].node.replica_manager.hosted.online.get(TP)
        if hosted is None or not hosted.is_leader or hosted.leader_epoch != state.leader_epoch:
            return
        high_watermark = self.cluster[state.leader].log().high_watermark
        self.committed = max(self.committed, high_watermark)
        reference = self.cluster[state.leader].values()[: self.committed]
        for broker_id in state.isr:
            values = self.cluster[broker_id].values()
            assert len(values) >= high_watermark, f"{broker_id} in the ISR lacks committed records"
            assert values[:high_watermark] == reference[:high_watermark]

    def run(self, steps: int) -> None:
        actions = [self.produce] * 10 + [self.elect, self.catch_up, self.catch_up, self.crash, self.boot, self.cut]
        actions += [self.heal, self.heal, self.lose_session, self.cut_zookeeper, self.meddle]
        for _ in range(steps):
            self.rng.choice(actions)()
            self.cluster.time.run_for(self.rng.choice([0, 1, 3, 20, 100, 700]))
            self.collect()
            self.check()

    def settle(self) -> None:
        """Repair everything; the cluster must recover and have every acknowledged record."""
        self.heal()
        self.boot()
        self.cluster.time.run_for(8_000)
        self.elect()
        self.catch_up()
        self.cluster.time.run_until(lambda: set(self.cluster.state().isr) == set(BROKERS), 60_000)
        answer = self.cluster[self.leader].produce(b"last")
        self.cluster.time.run_until(lambda: bool(answer), 10_000)
        assert answer[0].failure is None
        self.collect()
        self.cluster.until_in_sync(*BROKERS)
        values = self.cluster[1].values()
        for offset, value in sorted(self.acked.items()):
            assert values[offset] == value, f"{value!r} was acknowledged at {offset}, the log has {values[offset]!r}"
        epochs = {tuple(self.cluster[broker_id].epochs()) for broker_id in BROKERS}
        ends = [{entry for entry in one if entry[1] < len(values) - 1} for one in epochs]
        assert all(one == ends[0] for one in ends)


@pytest.mark.parametrize("seed", slow_but_every(3, range(24)))
def test_no_acknowledged_record_is_lost(seed: int) -> None:
    history = History(seed)
    history.run(150)
    history.settle()
    assert history.sent > 20
