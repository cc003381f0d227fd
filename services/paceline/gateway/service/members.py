"""`Members`: one `MemberDriver` per group and principal, and one per reader without a group."""

import asyncio
import itertools
import re
import time
from contextlib import ExitStack
from typing import Final

from paceline.gateway.credits import DEFAULT_BYTES, DEFAULT_RECORDS, Credits
from paceline.gateway.member import PULL
from paceline.gateway.service.clients import Clients
from paceline.gateway.service.member_driver import DriverSettings, MemberDriver, Outbox
from paceline.gateway.values import StreamId
from paceline.model.errors import InvalidRequestError, ShuttingDownError, ThrottledError
from paceline.v1.gateway_service_pb2 import Subscription
from paceline_client.metadata_refresher import MetadataRefresher

_TOPIC_S: Final = 10.0


class Members:
    """The members of this gateway; its methods run on the event loop."""

    def __init__(self, clients: Clients, settings: DriverSettings, limit: int, pull_idle_s: float) -> None:
        """``limit`` is the maximum number of members; ``pull_idle_s`` the time that a member stays without a Pull."""
        self._clients = clients
        self._settings = settings
        self._limit = limit
        self._pull_idle_s = pull_idle_s
        self._drivers: dict[object, MemberDriver] = {}
        self._readers = itertools.count()
        self._stopping = False
        self._closing: set[asyncio.Task[None]] = set()

    async def subscribe(self, principal: str, subscription: Subscription) -> tuple[MemberDriver, StreamId, Outbox]:
        """Add a stream.

        Raises:
            InvalidRequestError: the subscription is not valid.
            UnknownTopicOrPartitionError: a topic does not exist.
            ThrottledError: the gateway has as many members as it may have.
        """
        credit = checked(subscription)
        driver = await self._driver(principal, subscription)
        stream, outbox = driver.join(subscription, credit)
        return driver, stream, outbox

    async def pull(self, principal: str, subscription: Subscription) -> MemberDriver:
        """Return the member for a caller of Pull.

        Raises:
            PacelineError: as `subscribe`.
        """
        if not subscription.group:
            raise InvalidRequestError("Pull needs a group")
        checked(subscription)
        driver = await self._driver(principal, subscription)
        driver.last_pull_s = time.monotonic()
        driver.widen_pull(subscription)
        return driver

    def find(self, principal: str, group: str) -> MemberDriver | None:
        """Return the member of a group."""
        return self._drivers.get((principal, group))

    def leave(self, driver: MemberDriver, stream: StreamId) -> None:
        """Remove a stream; the member leaves its group with the last stream."""
        driver.leave(stream)
        if not driver.member.stream_count:
            self._stop(driver)

    def expire_pulls(self) -> None:
        """Remove the Pull callers of members without a recent Pull."""
        for driver in list(self._drivers.values()):
            idle_s = time.monotonic() - driver.last_pull_s
            if driver.last_pull_s and idle_s > self._pull_idle_s and not driver.has_lease:
                driver.last_pull_s = 0.0
                self.leave(driver, PULL)

    def snapshot(self) -> dict[str, float]:
        """Return numbers for metrics."""
        drivers = list(self._drivers.values())
        held = [one for driver in drivers for one in driver.member.held.values()]
        return {
            "gateway_members": len(drivers),
            "gateway_streams": sum(driver.member.stream_count for driver in drivers),
            "gateway_partitions": len(held),
            "gateway_unacknowledged_records": sum(one.unacknowledged()[0] for one in held),
        }

    async def close(self) -> None:
        """Leave all groups after the callers' last acknowledgements, and end the streams."""
        self._stopping = True
        error = ShuttingDownError("the gateway is stopping; call another gateway")
        await asyncio.gather(*(driver.stop(error) for driver in list(self._drivers.values())), return_exceptions=True)
        if self._closing:
            await asyncio.wait(self._closing, timeout=10.0)

    async def _driver(self, principal: str, subscription: Subscription) -> MemberDriver:
        with self._clients.use(principal) as client:
            await self._check_topics(client.connections.metadata, subscription)
            return self._find_or_new(principal, subscription)

    def _find_or_new(self, principal: str, subscription: Subscription) -> MemberDriver:
        if self._stopping:
            raise ShuttingDownError("the gateway is stopping; call another gateway")
        key: object = (principal, subscription.group) if subscription.group else next(self._readers)
        driver = self._drivers.get(key)
        if driver is not None:
            return driver
        if len(self._drivers) >= self._limit:
            raise ThrottledError.at(
                "GATEWAY_MEMBERS_MAX", f"the gateway has {self._limit} members already, gateway.members.max; try again"
            )
        use = ExitStack()
        connections = use.enter_context(self._clients.use(principal)).connections
        driver = MemberDriver(
            connections, subscription, self._settings, lambda: self._drivers.pop(key, None), on_finished=use.close
        )
        self._drivers[key] = driver
        return driver

    def _stop(self, driver: MemberDriver) -> None:
        self._drivers = {key: one for key, one in self._drivers.items() if one is not driver}
        task = asyncio.get_running_loop().create_task(driver.stop())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _check_topics(self, metadata: MetadataRefresher, subscription: Subscription) -> None:
        names = {*subscription.topics, *(one.topic for one in subscription.start_positions.positions)}
        for topic in names:
            if not metadata.cluster.partition_count(topic):
                await asyncio.to_thread(metadata.wait_for_topic, topic, _TOPIC_S)


def checked(subscription: Subscription) -> Credits:
    """Check a subscription and return its credit.

    Raises:
        InvalidRequestError: a field is missing or out of range.
    """
    has_positions = subscription.WhichOneof("start") == "start_positions"
    if bool(subscription.topics) == bool(subscription.topic_pattern) and not (
        has_positions and not subscription.group and not subscription.topic_pattern
    ):
        raise InvalidRequestError("a subscription has either topics or topic_pattern")
    if subscription.topic_pattern:
        if not subscription.group:
            raise InvalidRequestError("topic_pattern needs a group")
        try:
            re.compile(subscription.topic_pattern)
        except re.error as error:
            raise InvalidRequestError(f"topic_pattern is not a regular expression: {error}") from None
    if has_positions:
        if not subscription.start_positions.positions:
            raise InvalidRequestError("start_positions has no positions")
        for one in subscription.start_positions.positions:
            if one.offset < 0 or one.partition < 0:
                raise InvalidRequestError("start_positions has a negative partition or offset")
    if subscription.WhichOneof("start") == "start_time_ms" and subscription.start_time_ms < 0:
        raise InvalidRequestError("start_time_ms must not be negative")
    return Credits(
        subscription.credit_records if subscription.HasField("credit_records") else DEFAULT_RECORDS,
        subscription.credit_bytes if subscription.HasField("credit_bytes") else DEFAULT_BYTES,
    )
