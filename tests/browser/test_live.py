"""The console on a running cluster in a browser: a leader is killed while the page is open, and worse.

With PACELINE_PICTURES=FOLDER the test of the killed leader writes the pictures of README.md and docs/console.md there.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.detached_cluster import address_file
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.state_change import StateChange, StateChangeKind
from paceline.runtime.embedded_zookeeper import java_path
from paceline_client import Admin, NewTopic
from tests.browser import console as consoles
from tests.browser.console import LIVE, TOPIC, Console, check_axe, check_width, enter, shown
from tests.browser.tools import MARKS
from tests.support.paced_producers import PacedProducers
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, *MARKS]

LENS = LIVE["lens"]
SHOWN_WITHIN_MS = 1_000
TABS = 7
"""A browser allows six connections to a server, and an event stream holds one."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    running = LocalCluster(tmp_path_factory.mktemp("browser"), CONFIG_FILE, ports=free_plan(2, 3), heap_mib=64)
    running.start()
    try:
        with Admin(running.bootstrap) as admin:
            topic = NewTopic(TOPIC, assignments=[[2, 1, 3]], configs={"min.insync.replicas": "2"})
            admin.create_topics([topic])
        running.start_console()
        yield running
    finally:
        running.stop(force=True)


@pytest.fixture(scope="module")
def context(browser: "Browser", cluster: LocalCluster) -> "Iterator[BrowserContext]":
    console = Console(address_file(cluster.directory))
    entered = enter(browser, console, base_url=console.origin, viewport={"width": 1280, "height": 900})
    yield entered
    entered.close()


@pytest.fixture
def page(context: "BrowserContext") -> "Iterator[Page]":
    opened = context.new_page()
    yield opened
    opened.close()


def elected(cluster: LocalCluster, epoch: int) -> StateChange | None:
    """Return the election of this leader epoch."""
    with Admin(cluster.bootstrap) as admin:
        found = admin.past_events(topics=[TOPIC], kinds=[StateChangeKind.LEADER_ELECTED])
        return next((one for one in found if one.leader_epoch == epoch), None)


def test_a_leader_that_is_killed_is_replaced_on_the_open_page_within_a_second(
    cluster: LocalCluster, page: "Page"
) -> None:
    page.goto(LENS)
    page.wait_for_function("() => document.querySelector('[data-part=offsets]').textContent.includes('leads e0')")
    with Admin(cluster.bootstrap) as admin:
        leader = admin.describe_topics([TOPIC])[0].partitions[0].leader
    assert leader is not None
    followers = sorted({1, 2, 3} - {leader})
    with PacedProducers(cluster.bootstrap, TOPIC, 1, count=1) as producers:
        producers.await_progress(200)
        cluster.kill(cluster.broker(leader))
        # Leader, epoch and ISR: the title of the newest change, the bars of the strip, the signs beside each log.
        seen = page.wait_for_function(
            """([leader, followers]) => {
                const text = name => document.querySelector(`[data-part=${name}]`).textContent;
                const inSync = followers.every(one => text("offsets").includes(`● broker ${one}`));
                const changed = new RegExp(`epoch 1 leader [${followers}] ISR ${followers}`).test(text("strip"));
                return changed && inSync && text("offsets").includes(`○ broker ${leader}`) && Date.now();
            }""",
            arg=[leader, followers],
            polling=20,
        ).json_value()
        election = eventually(lambda: elected(cluster, 1), 60.0, "the election")
        assert election is not None and election.wall_ms is not None
        assert seen - election.wall_ms <= SHOWN_WITHIN_MS
        page.wait_for_function("() => document.querySelector('[data-part=offsets]').textContent.includes('★ leads e1')")
        with_star = page.evaluate("Date.now()")
        print(f"shown after the election: {seen - election.wall_ms} ms, its sample {with_star - election.wall_ms} ms")
        page.wait_for_function(
            "() => document.querySelector('[data-part=requests]').textContent.includes('LeaderAndIsr e1')"
        )
        producers.await_progress(200)
        assert f"{TOPIC}/0 has 2 of 3 replicas in sync since" in shown(page, "explain")
        if folder := os.environ.get("PACELINE_PICTURES"):
            take_pictures(page, Path(folder))
        cluster.restart(cluster.broker(leader))
        page.wait_for_function(
            "() => (document.querySelector('[data-part=offsets]').textContent.match(/●/g) || []).length === 3"
        )


def take_pictures(page: "Page", folder: Path) -> None:
    """Write a picture of the upper half of the page in each colour scheme."""
    page.set_viewport_size({"width": 1080, "height": 900})
    page.keyboard.press("End")  # the time stands still
    page.wait_for_url("**?t=*")
    end = page.locator("section", has_text="ISR over time").bounding_box()
    assert end is not None
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        area = {"x": 0, "y": 0, "width": 1080, "height": round(end["y"] + end["height"]) + 8}
        page.screenshot(path=folder / f"console-{scheme}.png", full_page=True, clip=area)
    page.emulate_media(color_scheme=None)
    page.locator('[data-do="follow"]').click()


@pytest.mark.parametrize("name", LIVE)
def test_axe_finds_no_violation_and_no_page_scrolls_sideways(page: "Page", name: str) -> None:
    answer = page.goto(LIVE[name])
    assert answer is not None and answer.ok
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        check_axe(page)
    for width in (consoles.NARROW, 380, 1280, consoles.WIDE):
        page.set_viewport_size({"width": width, "height": 900})
        check_width(page)


def test_seven_tabs_follow_with_one_event_stream_that_outlives_its_tab(context: "BrowserContext") -> None:
    streams: list[str] = []
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    context.on("request", lambda request: streams.append(request.url) if request.url.endswith("/stream") else None)
    tabs = [context.new_page() for _ in range(TABS)]
    for tab in tabs:
        tab.goto(LENS)

    def check_that_each_follows(those: "list[Page]") -> None:
        for tab in those:
            tab.bring_to_front()
            was = tab.locator("#clock").inner_text()
            tab.wait_for_function("was => document.getElementById('clock').textContent !== was", arg=was)

    check_that_each_follows(tabs)
    assert len(streams) == 1
    tabs[0].close()
    check_that_each_follows(tabs[1:])
    assert len(streams) == 2
    for tab in tabs[1:]:
        tab.close()
    assert {url for url in asked if not url.startswith("http://127.0.0.1:")} == set()


def test_a_cluster_that_does_not_answer_leaves_its_last_picture_marked_as_old(
    cluster: LocalCluster, page: "Page"
) -> None:
    page.goto(LENS)
    page.wait_for_function("() => document.querySelector('[data-part=offsets]').textContent.includes('★ leads')")
    assert page.locator("#trouble").is_hidden()
    before = shown(page, "offsets")
    brokers = [node for node in cluster.nodes.values() if node.kind == "broker"]
    for node in brokers:
        cluster.kill(node)
    page.locator("#trouble").wait_for(state="visible")
    assert page.locator("#trouble").inner_text().startswith("The picture is old: ")
    assert any(node.client_address in page.locator("#trouble").inner_text() for node in brokers)
    page.wait_for_function("() => document.querySelector('[data-part=explain] .warning')?.textContent === 'old'")
    assert shown(page, "offsets").splitlines()[0] == before.splitlines()[0] and "broker 1" in before
    check_axe(page)
    page.reload()
    assert page.locator("#trouble").is_visible()
    for node in brokers:
        cluster.restart(node, wait=False)
    page.locator("#trouble").wait_for(state="hidden")
