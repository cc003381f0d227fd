"""Damaged bytes on a disk: the controller moves the leadership, and the replica is rebuilt from its peers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from paceline.log.directory_names import directory_name
from paceline.log.record_batch import iterate_headers
from paceline.log.segment import Segment
from paceline.model.client_io import FetchRequest, FetchResponse, RequiredAcks
from paceline.model.fetch_position import FetchPosition
from tests.simulation.clients import Producer
from tests.simulation.health import stays_below_min_isr, why_not_quiet, why_not_whole
from tests.simulation.machines import LOG_DIRS, BrokerMachine
from tests.simulation.partition_record import PartitionRecord
from tests.simulation.profile import draw_profile
from tests.simulation.run import Run
from tests.simulation.world import World


@contextmanager
def quiet_run(seed: int, replication_factor: int = 3, log_dirs: int = 1) -> Iterator[Run]:
    """A cluster of three brokers with some records, without faults and without producers."""
    profile = replace(
        draw_profile(World(seed)),
        retention_bytes=-1,
        retention_ms=-1,
        brokers=3,
        controllers=2,
        replication_factor=replication_factor,
        min_insync_replicas=1,
        partitions=1,
        producers=1,
        readers=0,
        acks_all=1.0,
        log_dirs=log_dirs,
        lease_ms=0,
        operation_count=0,
        segment_bytes=3_000,
    )
    run = Run(seed, faults=[], profile=profile)
    with run.cluster.checks.control.probes():
        run.cluster.start()
        run.admin.create("events", 1)
        assert run._until(lambda: why_not_whole(run.cluster) is None and run.admin.is_done, 60_000)
        producer = Producer(run.cluster, "producer-0", RequiredAcks.ALL)
        run.producers.append(producer)
        producer.start()
        run._for(5_000)
        producer.stop()
        assert run._until(lambda: not producer.open and why_not_quiet(run.cluster) is None, 30_000)
        yield run


def only_record(run: Run) -> PartitionRecord:
    (record,) = run.cluster.checks.records.living()
    return record


def leader_of(run: Run) -> BrokerMachine:
    zk = only_record(run).zk
    assert zk is not None
    return run.cluster.brokers[zk.leader]


def flip_in_first_segment(machine: BrokerMachine, record: PartitionRecord) -> None:
    assert machine.life is not None
    log = machine.life.logs.get(record.topic_partition)
    assert log is not None
    segment = log.segments[0]
    machine.disk.flip_byte(segment.log_path, segment.size // 2)


def read_everything(run: Run) -> int:
    """Read the leader's log from the start; return the bytes, or raise the error of the read."""
    record = only_record(run)
    offset = total = 0
    while True:
        life = leader_of(run).life
        assert life is not None
        answers: list[FetchResponse] = []
        wanted = [FetchPosition(record.topic_partition, None, offset, 1_000)]
        life.node.fetch(FetchRequest(0, 1, 1_000, wanted), answers.append)
        result = answers[0].results[0]
        if result.failure is not None:
            raise LookupError(result.failure.code.name)
        if not result.batches:
            return total
        total += len(result.batches)
        offset = [header.last_offset for _, header in iterate_headers(result.batches)][-1] + 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_replica_with_a_flipped_byte_in_the_leaders_log_is_rebuilt(seed: int) -> None:
    with quiet_run(seed) as run:
        damaged = leader_of(run)
        size = read_everything(run)
        flip_in_first_segment(damaged, only_record(run))
        with pytest.raises(LookupError, match="KAFKA_STORAGE_ERROR"):
            read_everything(run)
        assert run._until(lambda: leader_of(run) is not damaged, 30_000)
        assert run._until(lambda: why_not_whole(run.cluster) is None and why_not_quiet(run.cluster) is None, 60_000), (
            why_not_whole(run.cluster)
        )
        assert read_everything(run) == size
        assert damaged.life is not None and len(damaged.life.logs.set_aside) == 1
        run._finish()
        verdicts = run.cluster.checks.verdicts
        assert not verdicts.violated, {name: verdicts.all[name].evidence for name in verdicts.violated}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_replica_that_lost_a_middle_segment_while_it_was_stopped_is_rebuilt_before_it_leads(seed: int) -> None:
    with quiet_run(seed) as run:
        machine, record = leader_of(run), only_record(run)
        size = read_everything(run)
        assert machine.life is not None
        log = machine.life.logs.get(record.topic_partition)
        assert log is not None and log.segment_count > 3
        machine.stop()
        assert run._until(lambda: machine.has_stopped_cleanly, 30_000)
        machine.disk.vanish(log.segments[1].log_path)
        record.lose_segment(machine.broker_id, log.segments[1].base_offset, log.segments[2].base_offset)
        machine.start()
        assert run._until(lambda: why_not_whole(run.cluster) is None and why_not_quiet(run.cluster) is None, 60_000)
        assert len(machine.life.logs.set_aside) == 1
        for other in run.cluster.brokers.values():
            if other is not machine:
                other.stop()
        assert run._until(lambda: leader_of(run) is machine, 60_000)
        assert read_everything(run) == size
        verdicts = run.cluster.checks.verdicts
        assert not verdicts.violated, {name: verdicts.all[name].evidence for name in verdicts.violated}


def test_a_flipped_byte_in_the_only_copy_is_kept() -> None:
    with quiet_run(4, replication_factor=1) as run:
        machine = leader_of(run)
        flip_in_first_segment(machine, only_record(run))
        with pytest.raises(LookupError, match="CORRUPT_MESSAGE"):
            read_everything(run)
        run._for(60_000)
        assert leader_of(run) is machine and why_not_whole(run.cluster) is None
        assert machine.life is not None and machine.life.logs.set_aside == []


def test_an_operator_removes_the_log_that_was_offline_when_the_replica_was_re_created() -> None:
    with quiet_run(5, log_dirs=2) as run:
        machine = leader_of(run)
        assert machine.life is not None
        log = machine.life.logs.get(only_record(run).topic_partition)
        assert log is not None
        machine.crash()
        old = next(path for one in LOG_DIRS if (path := f"{one}/{directory_name(log.topic_partition)}") != log.path)
        machine.disk.make_directory(old)
        for path in machine.disk.paths():
            if path.startswith(f"{log.path}/"):
                target = path.replace(log.path, old)
                machine.disk.create(target)
                machine.disk.append(target, machine.disk.read_at(path, 0, machine.disk.size(path) // 2))
        machine.directory_lost()  # so a start with two logs is no fault of a move
        machine.start()
        assert machine.disk.exists(log.path) and not machine.disk.exists(old)
        assert run._until(lambda: why_not_whole(run.cluster) is None and why_not_quiet(run.cluster) is None, 60_000)
        run._finish()
        verdicts = run.cluster.checks.verdicts
        assert not verdicts.violated, {name: verdicts.all[name].evidence for name in verdicts.violated}


def test_the_checks_of_retention_read_no_other_segments_than_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with quiet_run(1) as run:
        life = leader_of(run).life
        log = life.logs.get(only_record(run).topic_partition) if life is not None else None
        assert life is not None and log is not None and len(log.segments) > 3
        read: list[int] = []
        newest = Segment.newest_ms.fget  # type: ignore[attr-defined]

        def noted(segment: Segment) -> int:
            read.append(segment.base_offset)
            return newest(segment)  # type: ignore[no-any-return]

        monkeypatch.setattr(Segment, "newest_ms", property(noted))
        first, second = log.segments[:2]
        log.config = replace(log.config, retention_bytes=log.size_bytes - first.size)
        assert log.retained_from(life.scheduler.wall_ms()) == second.base_offset
        assert set(read) == {first.base_offset, second.base_offset}


def test_a_damaged_only_copy_below_min_isr_is_not_expected_to_accept_sends() -> None:
    with quiet_run(4, replication_factor=1) as run:
        machine, record = leader_of(run), only_record(run)
        run.admin.configure("events", {"min.insync.replicas": "2"})
        records = run.cluster.checks.records
        assert run._until(lambda: records.min_insync_replicas("events") == 2, 30_000)
        assert run._until(lambda: why_not_whole(run.cluster) is None, 30_000)
        record.flip(machine.broker_id)
        flip_in_first_segment(machine, record)
        assert not stays_below_min_isr(run.cluster, record), "the damage was not found"
        with pytest.raises(LookupError, match="CORRUPT_MESSAGE"):
            read_everything(run)
        assert stays_below_min_isr(run.cluster, record)
        assert run._recover()
        run.admin.configure("events", {"min.insync.replicas": "1"})
        assert run._until(lambda: not stays_below_min_isr(run.cluster, record), 30_000), "its ISR is enough for sends"
        verdicts = run.cluster.checks.verdicts
        assert not verdicts.violated, {name: verdicts.all[name].evidence for name in verdicts.violated}


def test_a_new_controller_finds_a_replica_that_waits_to_be_rebuilt() -> None:
    with quiet_run(5) as run:
        damaged = leader_of(run)
        size = read_everything(run)
        flip_in_first_segment(damaged, only_record(run))
        with pytest.raises(LookupError):
            read_everything(run)
        for controller in run.cluster.controllers.values():
            if controller.life is not None and controller.life.node.is_active:
                controller.crash()
        assert run._until(lambda: leader_of(run) is not damaged, 60_000)
        for controller in run.cluster.controllers.values():
            controller.start()
        assert run._until(lambda: why_not_whole(run.cluster) is None and why_not_quiet(run.cluster) is None, 60_000)
        assert read_everything(run) == size
