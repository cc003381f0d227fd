"""Records through three replicas, returning replicas and truncation, with real cores and logs."""

from tests.support.broker_cluster import BrokerCluster


def test_one_record_travels_through_three_replicas() -> None:
    # spec/replica-manager.md section 4.1, step by step.
    cluster = BrokerCluster()
    cluster.decide(leader=1, leader_epoch=0, isr=(1, 2, 3), is_new=True)
    cluster.time.run_for(100)
    logs = [cluster[one].log() for one in (1, 2, 3)]
    assert [log.log_end_offset for log in logs] == [0, 0, 0]
    answer = cluster[1].produce(b"a")
    assert [log.log_end_offset for log in logs] == [1, 0, 0] and logs[0].high_watermark == 0
    cluster.time.run_until(lambda: bool(answer), 50)
    assert answer[0].failure is None and answer[0].base_offset == 0
    assert [log.log_end_offset for log in logs] == [1, 1, 1] and logs[0].high_watermark == 1
    assert [log.high_watermark for log in logs[1:]] == [0, 0]
    # The high watermark alone does not answer a waiting follower; it learns with the end of its wait.
    cluster.time.run_for(300)
    assert [log.high_watermark for log in logs[1:]] == [0, 0]
    cluster.time.run_for(300)
    assert [log.high_watermark for log in logs] == [1, 1, 1]
    assert [cluster[one].values() for one in (1, 2, 3)] == [[b"a"]] * 3
