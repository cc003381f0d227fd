"""Rebalances: collect the members of a group, track their sessions, and remove members without heartbeats.

1. A member joins, leaves or dies: PREPARING_REBALANCE. The response to a heartbeat is REBALANCE_IN_PROGRESS.
2. Every member has joined again, or the longest rebalance timeout is over: members that have not joined are removed,
   the generation rises, every join is answered: COMPLETING_REBALANCE. A group that was empty first waits for
   ``group.initial.rebalance.delay.ms``, and again whenever a member has joined during the wait.
3. The leader's assignments are written: STABLE, every sync is answered.

A static member that does not join again in step 2 stays until its session timeout.

Source: docs/protocol/groups.md#rebalance and #session-of-a-member; KIP-134 (initial delay), KIP-345 (static members).
"""

import logging
from collections.abc import Callable
from typing import Final

from paceline.broker.groups.group import Group, GroupState
from paceline.broker.groups.group_storage import GroupStorage
from paceline.broker.groups.member import Member
from paceline.broker.groups.metrics import GroupMetrics
from paceline.broker.groups.requests import SyncResult
from paceline.model.errors import PacelineError, RebalanceInProgressError, UnknownMemberIdError
from paceline.model.scheduler import Scheduler
from paceline.model.settings import GroupConfig

LOG = logging.getLogger("paceline.broker.groups")

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""Session timeout of a new member until the response to its first JoinGroup."""


class Rebalances:
    """Begins and ends the rebalances of all groups."""

    def __init__(self, config: GroupConfig, scheduler: Scheduler, storage: GroupStorage, metrics: GroupMetrics) -> None:
        self._config = config
        self._metrics = metrics
        self._scheduler = scheduler
        self._storage = storage

    # Sessions of members

    def restart_session(self, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        """Restart a member's session, by default with the member's session timeout."""
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = self._scheduler.now_ms() + timeout_ms
        # A timer that fires too early checks the deadline again; only an earlier deadline needs another timer.
        if member.timer is not None and deadline_ms >= member.deadline_ms:
            member.deadline_ms = deadline_ms
            return
        member.stop_timer()
        member.deadline_ms = deadline_ms
        member.timer = self._scheduler.call_later(timeout_ms, lambda: self._check(group, member))

    def _check(self, group: Group, member: Member) -> None:
        member.timer = None
        if group.is_in(GroupState.DEAD) or group.members.get(member.member_id) is not member:
            return
        left_ms = member.deadline_ms - self._scheduler.now_ms()
        if left_ms > 0:
            member.timer = self._scheduler.call_later(left_ms, lambda: self._check(group, member))
            return
        if not member.is_new and (member.on_join is not None or member.on_sync is not None):
            self.restart_session(group, member)
            return
        LOG.info("member session expired: group=%s member=%s", group.group_id, member.member_id)
        self.remove(group, member, "a member's session expired")

    def add_pending_member(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """Delay the rebalance for a new member that received its member id with MEMBER_ID_REQUIRED."""

        def give_up() -> None:
            if group.pending_members.pop(member_id, None) is not None:
                self.maybe_complete_join(group)

        group.pending_members[member_id] = self._scheduler.call_later(timeout_ms, give_up)

    def remove_pending_member(self, group: Group, member_id: str) -> bool:
        """Stop waiting for a new member; return whether it was pending."""
        timer = group.pending_members.pop(member_id, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def remove(self, group: Group, member: Member, why: str) -> None:
        """Remove a member and start a rebalance for its partitions."""
        on_join, on_sync = member.on_join, member.on_sync
        member.on_join = member.on_sync = None
        group.remove(member.member_id)
        error = _unknown(group, member)
        if on_join is not None:
            on_join(error)
        if on_sync is not None:
            on_sync(error)
        if group.is_in(GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.begin(group, why)
        elif group.is_in(GroupState.PREPARING_REBALANCE):
            self.maybe_complete_join(group)

    # Joining

    def begin(self, group: Group, why: str) -> None:
        """Start a rebalance, unless the group is already waiting for members."""
        if not group.can_rebalance:
            return
        LOG.info("rebalancing: group=%s generation=%d reason=%s", group.group_id, group.generation, why)
        if group.is_in(GroupState.COMPLETING_REBALANCE):
            self.fail_sync(group, RebalanceInProgressError("the group rebalances"))
        self._stop_sync_timer(group)
        was_empty = group.is_in(GroupState.EMPTY)
        group.transition(GroupState.PREPARING_REBALANCE, self._scheduler.wall_ms())
        delay_ms = self._config.group_initial_rebalance_delay_ms
        if was_empty and delay_ms > 0:
            group.new_member_added = False
            self._wait_initially(group, delay_ms, max(0, group.rebalance_timeout_ms - delay_ms))
            return
        self._wait_for_members(group)
        self.maybe_complete_join(group)

    def _wait_initially(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        """Wait for members that start together with the first; wait again when members joined in the wait (KIP-134)."""

        def over() -> None:
            if group.new_member_added and remaining_ms > 0:
                group.new_member_added = False
                step_ms = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
                self._wait_initially(group, step_ms, max(0, remaining_ms - delay_ms))
            else:
                self._complete_join(group)

        group.is_waiting_initially = True
        group.join_timer = self._scheduler.call_later(delay_ms, over)

    def _wait_for_members(self, group: Group) -> None:
        group.is_waiting_initially = False
        timeout_ms = max(1, group.rebalance_timeout_ms)
        group.join_timer = self._scheduler.call_later(timeout_ms, lambda: self._complete_join(group))

    def maybe_complete_join(self, group: Group) -> None:
        """Answer the joins when every member has joined."""
        if group.is_in(GroupState.PREPARING_REBALANCE) and not group.is_waiting_initially and group.all_joined:
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        if not group.is_in(GroupState.PREPARING_REBALANCE):
            return
        if group.join_timer is not None:
            group.join_timer.cancel()
            group.join_timer = None
        group.is_waiting_initially = False
        for member in [one for one in group.members.values() if one.on_join is None and not one.is_static]:
            LOG.info("member did not join again: group=%s member=%s", group.group_id, member.member_id)
            group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members, none of which has joined again: they may join until their session timeout.
            self._wait_for_members(group)
            return
        group.next_generation(self._scheduler.wall_ms())
        self._metrics.rebalances += 1
        LOG.info(
            "generation begins: group=%s generation=%d members=%d protocol=%s",
            group.group_id,
            group.generation,
            len(group.members),
            group.protocol,
        )
        if not group.members:
            self._storage.store_group(group, {}, lambda answer: _warn(group, answer))
            return
        for member in tuple(group.members.values()):
            on_join, member.on_join = member.on_join, None
            if on_join is None:
                continue  # a static member that has not joined again: its session timeout continues
            member.is_new = False
            member.stop_timer()
            self.restart_session(group, member)
            group.pending_sync.add(member.member_id)
            on_join(group.join_result(member.member_id))
        self._wait_for_sync(group)

    # Syncing

    def _wait_for_sync(self, group: Group) -> None:
        """Remove members that do not send SyncGroup within the rebalance timeout."""
        generation = group.generation

        def over() -> None:
            group.sync_timer = None
            if group.generation != generation or not group.is_in(GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
                return
            silent = [member for member_id, member in group.members.items() if member_id in group.pending_sync]
            for member in silent:
                group.remove(member.member_id)
            if silent:
                self.begin(group, "members did not send SyncGroup")

        self._stop_sync_timer(group)
        group.sync_timer = self._scheduler.call_later(max(1, group.rebalance_timeout_ms), over)

    def remove_pending_sync(self, group: Group, member: Member) -> None:
        """Record a member's SyncGroup; stop the timer when no other SyncGroup is missing."""
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self._stop_sync_timer(group)

    def _stop_sync_timer(self, group: Group) -> None:
        if group.sync_timer is not None:
            group.sync_timer.cancel()
            group.sync_timer = None

    def answer_sync(self, group: Group) -> None:
        """Send every waiting member its assignment."""
        self._each_sync(group, group.sync_result)

    def fail_sync(self, group: Group, error: PacelineError) -> None:
        """Discard the assignments and answer every waiting member with an error."""
        for member in group.members.values():
            member.assignment = b""
        self._each_sync(group, lambda _member: error)

    def _each_sync(self, group: Group, answer: Callable[[Member], SyncResult | PacelineError]) -> None:
        for member in tuple(group.members.values()):
            on_sync, member.on_sync = member.on_sync, None
            if on_sync is not None:
                self.restart_session(group, member)
                on_sync(answer(member))


def _unknown(group: Group, member: Member) -> PacelineError:
    return UnknownMemberIdError(f"member {member.member_id} was removed from group {group.group_id}")


def _warn(group: Group, answer: int | PacelineError) -> None:
    if isinstance(answer, PacelineError):
        LOG.warning("empty group was not written: group=%s error=%s", group.group_id, answer)
