"""The screens of the console on a running cluster: every page and its JSON twin."""

import html
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from paceline.console.service.cluster import Cluster
from paceline.console.service.pages import Pages
from paceline.console.service.source import LiveSource
from paceline.dev.local_cluster import LocalCluster
from paceline.model.identifiers import TopicPartition
from paceline_client import Admin, NewTopic, Producer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

DEADLINE_S = 60.0
JSON = {"accept": "application/json"}
TOPIC = "screened"


@pytest.fixture(scope="module")
def browser(local_cluster: LocalCluster) -> Iterator[TestClient]:
    with Admin(local_cluster.bootstrap) as admin, Producer(local_cluster.bootstrap) as producer:
        admin.create_topics([NewTopic(TOPIC, assignments=[[1, 2, 3], [2, 3, 1]])])
        for number in range(5):
            producer.send(TOPIC, b'{"n": %d}' % number, key=b"\x00\xff", partition=0).result(DEADLINE_S)
        admin.alter_group_offsets("screened <b>", {(TOPIC, 0): 2})
    source = LiveSource(lambda: Admin(local_cluster.bootstrap), "a test")
    cluster = Cluster(local_cluster.bootstrap, show_records=True, allow_changes=True)
    browser = TestClient(Pages(source, cluster).application())
    cluster.start()
    yield browser
    source.close()
    cluster.close()


PATHS = ["/", "/brokers", "/topics", *(f"/topics/{TOPIC}{part}" for part in ("", "/settings", "/messages", "/groups"))]
PATHS += ["/reassignments", "/events", "/groups", "/group?id=screened+%3Cb%3E"]


@pytest.mark.parametrize("path", PATHS)
def test_every_page_and_its_twin_answer(browser: TestClient, path: str) -> None:
    page, twin = browser.get(path), browser.get(path, headers=JSON)
    assert (page.status_code, twin.status_code) == (200, 200), page.text
    assert html.escape(twin.json()["title"]) in page.text and not twin.json()["trouble"]


def test_the_overview_has_each_partition_with_its_state(browser: TestClient) -> None:
    def states() -> dict[str, str]:
        rows = browser.get("/", headers=JSON).json()["partitions"]
        return {one["name"]: one["severity"] for one in rows if one["topic"] == TOPIC}

    wanted = {f"{TOPIC}/0": "ok", f"{TOPIC}/1": "ok"}
    assert eventually(lambda: states() == wanted, DEADLINE_S, "the partitions of the new topic")


def test_brokers_are_up_with_their_bytes_and_address(browser: TestClient) -> None:
    rows = browser.get("/brokers", headers=JSON).json()["brokers"]
    assert [(one["broker"], one["state"]) for one in rows] == [(1, "up"), (2, "up"), (3, "up")]
    assert all(one["bytes"] is not None and one["address"] for one in rows)


def test_a_topic_shows_offsets_bytes_and_settings_with_origin(browser: TestClient) -> None:
    def first() -> dict[str, Any]:
        return dict(browser.get(f"/topics/{TOPIC}", headers=JSON).json()["partitions"][0])

    row = eventually(lambda: found if (found := first())["records"] == 5 else None, DEADLINE_S, "five records")
    assert row is not None
    assert (row["leader"], row["isr"], row["log_end"]) == (1, [1, 2, 3], 5)
    settings = browser.get(f"/topics/{TOPIC}/settings", headers=JSON).json()["settings"]
    assert {one["key"]: one["origin"] for one in settings}["min.insync.replicas"] == "broker default"


def test_records_are_read_filtered_and_downloaded(browser: TestClient) -> None:
    def read(query: str) -> dict[str, Any]:
        return dict(browser.get(f"/topics/{TOPIC}/messages?{query}", headers=JSON).json())

    newest = read("n=2")["records"]
    assert [(one["offset"], one["key_form"]) for one in newest] == [(4, "hex"), (3, "hex")]
    assert [one["offset"] for one in read("from=offset&place=3&partition=0")["records"]] == [3, 4]
    assert [one["offset"] for one in read("from=start&q=%22n%22%3A+2")["records"]] == [2]
    part = read("from=start&n=2&partition=0")
    assert part["positions"] == {"0": 2}
    file = browser.get(f"/topics/{TOPIC}/record?partition=0&offset=2&part=value")
    assert (file.content, file.headers["content-type"]) == (b'{"n": 2}', "application/octet-stream")
    assert "attachment" in file.headers["content-disposition"]


def test_a_page_that_follows_shows_only_new_records(browser: TestClient, local_cluster: LocalCluster) -> None:
    page = browser.get(f"/topics/{TOPIC}/messages?from=tail").text
    address = html.unescape(re.findall(r'data-tail="([^"]+)"', page)[0])
    with Producer(local_cluster.bootstrap) as producer:
        producer.send(TOPIC, b"<b>new</b>", partition=1).result(DEADLINE_S)
    (record,) = eventually(lambda: browser.get(address, headers=JSON).json()["records"], DEADLINE_S, "the new record")
    assert (record["partition"], record["value"]) == (1, "<b>new</b>")
    assert "<b>new" not in browser.get(address).text


def test_a_record_of_ten_mebibytes_is_cut_on_the_page_and_whole_as_a_file(
    browser: TestClient, local_cluster: LocalCluster
) -> None:
    halves = str.maketrans("0123456789abcdef", "ab" * 8)  # one bit in a byte: a request has at most 4 MiB
    value = os.urandom(5 << 20).hex().translate(halves).encode()
    bootstrap = local_cluster.bootstrap
    with Admin(bootstrap) as admin, Producer(bootstrap, max_record_bytes=11 << 20, compression="gzip") as producer:
        admin.create_topics([NewTopic("screened-big", 1, 3, configs={"max.message.bytes": "4000000"})])
        producer.send("screened-big", value).result(DEADLINE_S)
    (row,) = browser.get("/topics/screened-big/messages?size=100", headers=JSON).json()["records"]
    assert row["value_bytes"] == len(value) and row["value_is_cut"] and len(row["value"]) < 200
    assert len(browser.get("/topics/screened-big/messages").content) < 50_000
    assert browser.get("/topics/screened-big/record?partition=0&offset=0").content == value


def test_a_group_shows_its_lag_per_partition_and_over_time(browser: TestClient) -> None:
    (row,) = browser.get("/group?id=screened+%3Cb%3E", headers=JSON).json()["lag"]
    assert (row["partition"], row["committed"], row["lag"]) == (f"{TOPIC}/0", 2, 3)

    def sampled() -> bool:
        listed = {one["group"]: one["lag"] for one in browser.get("/groups", headers=JSON).json()["groups"]}
        return listed["screened <b>"] == 3

    eventually(sampled, DEADLINE_S, "the first sample of the lag")
    assert browser.get(f"/topics/{TOPIC}/groups", headers=JSON).json()["groups"][0]["group"] == "screened <b>"
    page = browser.get("/group?id=screened+%3Cb%3E").text
    assert 'aria-label="Lag over two hours, now 3 records"' in page and "screened <b>" not in page


def test_a_move_that_waits_for_a_broker_says_so(browser: TestClient, local_cluster: LocalCluster) -> None:
    """The target has a throttle of one byte per second, so that the move is still running when it is looked at."""
    bootstrap = local_cluster.bootstrap
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        throttled = {f"{side}.replication.throttled.replicas": "*" for side in ("leader", "follower")}
        admin.create_topics([NewTopic("screened-move", assignments=[[1]], configs=throttled)])
        admin.alter_configs({"screened-move": {"min.insync.replicas": "1"}})
        for _ in range(12):  # a throttle lets the first fetch pass
            producer.send("screened-move", b"x" * 900_000).result(DEADLINE_S)
        rates = {f"{side}.replication.throttled.rate": "1" for side in ("leader", "follower")}
        admin.alter_broker_configs({2: rates})
        admin.alter_partition_reassignments({("screened-move", 0): [2]})
        try:

            def waiting() -> dict[str, Any] | None:
                rows = browser.get("/reassignments", headers=JSON).json()["moves"]
                return next((one for one in rows if one["bytes_left"] and one["bytes_per_s"] is not None), None)

            row = eventually(waiting, DEADLINE_S, "the move and its rate")
            assert row is not None
            assert (row["name"], row["state"], row["adding"]) == ("screened-move/0", "copying", [2])
            assert row["bytes_left"] > 1_000_000 and row["throttle"] == 1 and "broker 2" in row["reason"]
        finally:
            admin.alter_broker_configs({2: dict.fromkeys(rates)})

    def told() -> list[dict[str, Any]]:
        return list(browser.get("/events?topic=screened-move&kind=reassignment", headers=JSON).json()["events"])

    assert eventually(told, DEADLINE_S, "the event of the reassignment")[0]["who"].startswith("controller-")


def change(browser: TestClient, kind: str, **given: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Prepare and confirm a change; return its preview and its outcome."""
    preview = browser.post(f"/changes/{kind}", data=given, headers=JSON)
    assert preview.status_code == 200, preview.text
    done = browser.post(f"/changes/{kind}", data={"token": preview.json()["token"]}, headers=JSON)
    return preview.json(), done.json()


def test_a_topic_is_created_altered_written_trimmed_and_deleted(
    browser: TestClient, local_cluster: LocalCluster
) -> None:
    topic = "screened-change"
    with Admin(local_cluster.bootstrap) as admin:
        given = {"topic": topic, "partitions": "2", "replication_factor": "3", "configs": "retention.ms=5000\n"}
        preview = browser.post("/changes/create-topic", data=given, headers=JSON).json()
        assert [len(row["replicas"]) for row in preview["rows"]] == [3, 3]
        assert topic not in admin.list_topics(), "a preview changes nothing"
        assert change(browser, "create-topic", **given)[1]["done"] == f"Topic {topic} was created."
        preview, _ = change(browser, "alter-topic", topic=topic, key="retention.ms", value="7000")
        assert preview["rows"] == [{"key": "retention.ms", "before": "5000", "origin": "topic", "after": "7000"}]
        assert admin.describe_configs(topic, ["retention.ms"])[topic][0].value == "7000"
        record = {"topic": topic, "partition": "1", "key": "k", "value": "a\r\nb", "headers": "h=1"}
        assert change(browser, "produce", **record)[1]["done"] == f"The record was written to {topic}/1 at offset 0."
        (row,) = browser.get(f"/topics/{topic}/messages", headers=JSON).json()["records"]
        assert (row["key"], row["value"], row["headers"]) == ("k", "a\nb", [["h", "1"]])
        preview, done = change(browser, "trim-topic", topic=topic, partition="1")
        assert preview["loses_records"] and preview["rows"][0]["records"] == 1
        assert done["done"] == f"{topic}/1 begins at offset 1 now."
        preview, done = change(browser, "delete-topic", topic=topic)
        assert preview["loses_records"] and "2 partitions with 0 records" in preview["sentence"]
        assert done["done"] == f"Topic {topic} was deleted."
        eventually(lambda: topic not in admin.list_topics(), DEADLINE_S, "the deletion")


def test_a_group_is_reset_to_what_the_preview_showed(browser: TestClient, local_cluster: LocalCluster) -> None:
    with Admin(local_cluster.bootstrap) as admin, Producer(local_cluster.bootstrap) as producer:
        admin.alter_group_offsets("screened-reset", {(TOPIC, 0): 1})
        given = {"group": "screened-reset", "to": "end"}
        preview = browser.post("/changes/reset-group", data=given, headers=JSON).json()
        end = preview["rows"][0]["after"]
        producer.send(TOPIC, b"later", partition=0).result(DEADLINE_S)
        token = {"token": preview["token"]}
        assert browser.post("/changes/reset-group", data=token, headers=JSON).status_code == 200
        assert admin.group_offsets("screened-reset")[TopicPartition(TOPIC, 0)].offset == end
        again = browser.post("/changes/reset-group", data=token, headers=JSON)
        assert again.status_code == 409 and "made already" in again.json()["error"]


@pytest.mark.parametrize(
    ("kind", "given", "status", "told"),
    [
        ("create-topic", {"topic": "a b"}, 400, "characters other than"),
        ("create-topic", {"topic": "x", "partitions": "many"}, 400, "partitions must be a whole number"),
        ("create-topic", {"topic": "x", "configs": "no pair"}, 400, "is not KEY=VALUE"),
        ("create-topic", {}, 400, "Give topic"),
        ("alter-topic", {"topic": TOPIC, "key": "no.such.key", "value": "1"}, 400, "no.such.key"),
        ("trim-topic", {"topic": TOPIC, "partition": "0", "before": "999"}, 400, "beyond the high watermark"),
        ("delete-topic", {"topic": "screened-nothing"}, 404, "does not exist"),
        ("delete-topic", {"topic": "__consumer_offsets"}, 400, "state of all groups"),
        ("produce", {"topic": TOPIC, "partition": "9", "value": ""}, 404, "no 9"),
        ("produce", {"topic": TOPIC, "value": "x" * 1_000_001}, 400, "more than 1,000,000 bytes"),
        ("produce", {"topic": TOPIC, "value": "x" * (5 << 20)}, 413, "at most 4 MiB"),
        ("reset-group", {"group": "screened-new", "to": "start"}, 404, "no committed offsets"),
        ("reset-group", {"group": "screened <b>", "to": "soon"}, 400, "none of start, end"),
        ("no-such-change", {}, 404, "create-topic"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_before_it_is_confirmed(
    browser: TestClient, kind: str, given: dict[str, str], status: int, told: str
) -> None:
    answer = browser.post(f"/changes/{kind}", data=given, headers=JSON)
    assert (answer.status_code, told in answer.json()["error"]) == (status, True), answer.text
    assert browser.post(f"/changes/{kind}", data=given).status_code == status


@pytest.mark.parametrize(
    "kind", ["create-topic", "alter-topic", "trim-topic", "delete-topic", "produce", "reset-group"]
)
def test_each_change_has_a_form_and_its_preview_a_page(browser: TestClient, kind: str) -> None:
    page = browser.get(f"/changes/{kind}?topic={TOPIC}&group=screened+%3Cb%3E").text
    assert f'<form method="post" action="/changes/{kind}"' in page and "screened <b>" not in page
    given = {"topic": TOPIC, "partition": "0", "key": "retention.ms", "to": "end", "group": "screened <b>"}
    if kind == "create-topic":
        given = {"topic": "screened-form"}
    elif kind == "reset-group":
        del given["topic"]
    preview = browser.post(f"/changes/{kind}", data=given).text
    assert "Nothing has been changed yet." in preview and 'name="token"' in preview, preview
