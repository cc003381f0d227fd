"""The thread that sends a member's heartbeats between polls."""

import logging
import threading
import time
from typing import Final

import grpc

from paceline.model.errors import ErrorCode, PacelineError
from paceline.v1.group_service_pb2 import HeartbeatRequest
from paceline_client.groups.membership import GroupMembership

LOG = logging.getLogger("paceline.client")

_RETRY_S = 0.2
_LOST: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,  # the next poll joins again, and raises the refusal
)


class Heartbeats:
    """Sends heartbeats while the member is in a generation; leaves the group when the application stops polling."""

    def __init__(self, membership: GroupMembership, name: str) -> None:
        self._membership = membership
        self._settings = membership.settings
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop and join the thread."""
        with self._membership.changed:
            self._closed = True
            self._membership.changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def _run(self) -> None:
        membership = self._membership
        next_beat = 0.0
        while True:
            with membership.changed:
                if self._closed:
                    return
                now = time.monotonic()
                if not membership.is_beating:
                    next_beat = now + self._settings.heartbeat_interval_ms / 1000
                    membership.changed.wait(1.0)
                    continue
                if now < next_beat:
                    membership.changed.wait(next_beat - now)
                    continue
            try:
                pause_s = self._beat()
            except Exception:  # keep the thread alive: without heartbeats the member would be removed
                LOG.exception("heartbeat failed: group=%s", self._settings.group_id)
                pause_s = _RETRY_S
            next_beat = time.monotonic() + pause_s

    def _beat(self) -> float:
        """Send a heartbeat; return the pause until the next heartbeat."""
        membership, settings = self._membership, self._settings
        idle_ms = (time.monotonic() - membership.last_poll) * 1000
        if idle_ms > settings.max_poll_interval_ms:
            LOG.warning(
                "no poll within max_poll_interval_ms, leaving the group; poll more often, return fewer records per "
                "poll or raise max_poll_interval_ms: group=%s idle_ms=%d",
                settings.group_id,
                idle_ms,
            )
            membership.send_leave(settings.session_timeout_ms / 2, lost=True)
            return settings.heartbeat_interval_ms / 1000
        with membership.changed:
            generation, member_id = membership.generation, membership.member_id
        request = HeartbeatRequest(
            group_id=settings.group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=settings.group_instance_id,
        )
        timeout_s = max(0.5, min(settings.session_timeout_ms / 3, settings.heartbeat_interval_ms * 2) / 1000)
        try:
            membership.coordinator.stub(timeout_s).Heartbeat(request, timeout=timeout_s)
        except grpc.RpcError as failure:
            return self._refused(generation, membership.coordinator.failed(failure))
        except PacelineError as error:
            return self._refused(generation, error)
        return settings.heartbeat_interval_ms / 1000

    def _refused(self, generation: int, error: PacelineError) -> float:
        membership = self._membership
        with membership.changed:
            if membership.generation != generation:
                return 0.0  # the response belongs to an earlier generation
        if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            membership.rejoin()
            return self._settings.heartbeat_interval_ms / 1000
        if error.code in _LOST:
            LOG.info("group membership lost: group=%s error=%s", self._settings.group_id, error)
            membership.lose(error, error.code is not ErrorCode.ILLEGAL_GENERATION, generation)
            return self._settings.heartbeat_interval_ms / 1000
        LOG.debug("heartbeat refused: group=%s error=%s", self._settings.group_id, error)
        return _RETRY_S
