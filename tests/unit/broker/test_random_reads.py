"""Random faults while consumers read from any broker and throttles change: only committed records are read (C9)."""

import pytest

from paceline.model.client_io import FetchResponse
from tests.support.batches import decode_records
from tests.support.broker_cluster import TP
from tests.support.slow import slow_but_every
from tests.unit.broker.test_random_histories import BROKERS, History
from tests.unit.broker.test_replication_throttle import set_rate, throttle


class ReadHistory(History):
    """A history with readers at every broker, and changing throttles."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.reads: list[list[FetchResponse]] = []
        self.seen: dict[int, bytes] = {}

    def read(self) -> None:
        broker = self.cluster[self.rng.choice(self.up())]
        log = broker.logs.get(TP)
        if log is not None:
            offset = self.rng.randint(0, log.log_end_offset + 1)
            self.reads.append(broker.consume(offset, max_wait_ms=self.rng.choice([0, 50, 2_000]), rack="somewhere"))

    def follow(self) -> None:
        """Read a follower's newest records, where committed and uncommitted records are adjacent."""
        state = self.cluster.state()
        others = [broker_id for broker_id in self.up() if broker_id != state.leader]
        if others:
            broker = self.cluster[self.rng.choice(others)]
            log = broker.logs.get(TP)
            end = 0 if log is None else log.log_end_offset
            self.reads.append(broker.consume(max(0, end - self.rng.randint(0, 4)), max_wait_ms=500, rack="somewhere"))

    def slow_down(self) -> None:
        side = self.rng.choice(["leader", "follower"])
        if self.rng.random() < 0.5:
            throttle(self.cluster, side, self.rng.choice(["*", "", "0:1,0:2", "0:3"]))
        else:
            set_rate(self.cluster, "<default>", **{side: self.rng.choice([0, 100, 10_000])})

    def collect(self) -> None:
        super().collect()
        for answers in self.reads:
            for result in answers[0].results if answers else ():
                if result.failure is None and result.batches:
                    for record in decode_records(result.batches):
                        known = self.seen.setdefault(record.offset, record.value or b"")
                        assert known == record.value, f"two values were read at {record.offset}"
        self.reads = [answers for answers in self.reads if not answers]

    def run(self, steps: int) -> None:
        actions = [self.produce] * 10 + [self.elect, self.catch_up, self.catch_up, self.crash, self.boot, self.cut]
        actions += [self.heal, self.heal, self.lose_session, self.cut_zookeeper, self.meddle]
        actions += [self.read] * 3 + [self.follow] * 5 + [self.slow_down]
        for _ in range(steps):
            self.rng.choice(actions)()
            self.cluster.time.run_for(self.rng.choice([0, 1, 3, 20, 100, 700]))
            self.collect()
            self.check()


@pytest.mark.parametrize("seed", slow_but_every(4, range(16)))
def test_every_record_read_from_any_broker_is_in_the_final_log(seed: int) -> None:
    history = ReadHistory(seed)
    history.run(200)
    for side in ("leader", "follower"):
        throttle(history.cluster, side, "")
    history.settle()
    values = history.cluster[1].values()
    assert history.seen, "nothing was read"
    for offset, value in sorted(history.seen.items()):
        assert values[offset] == value, f"{value!r} was read at {offset}, the log has {values[offset]!r}"
    assert all(history.cluster[broker_id].values() == values for broker_id in BROKERS)
