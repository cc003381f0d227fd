"""JoinGroup: new members, members that join again, and static members whose process was replaced.

Source: docs/protocol/groups.md#joining-a-group; KIP-394 (MEMBER_ID_REQUIRED), KIP-345 (static members).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from paceline.broker.groups.group import Group, GroupState
from paceline.broker.groups.group_storage import GroupStorage
from paceline.broker.groups.limits import check_metadata
from paceline.broker.groups.member import Member
from paceline.broker.groups.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS, Rebalances
from paceline.broker.groups.requests import JoinReply, JoinRequest
from paceline.model.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    PacelineError,
    UnknownMemberIdError,
)
from paceline.model.scheduler import Scheduler
from paceline.model.settings import GroupConfig
from paceline.replication.purgatory import Cancel


@dataclass(slots=True, eq=False)
class Joining:
    """Handles JoinGroup."""

    _config: GroupConfig
    _scheduler: Scheduler
    _storage: GroupStorage
    _rebalances: Rebalances
    _new_member_suffix: Callable[[], str]

    def join(self, request: JoinRequest, reply: JoinReply) -> Cancel | None:
        """Add the caller; reply at once, or when all members have joined.

        Raises:
            PacelineError: the caller cannot join; ``reply`` is not called.
        """
        self._storage.owned_partition(request.group_id)
        low, high = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            raise InvalidSessionTimeoutError(f"session time-out {request.session_timeout_ms} is not in {low}..{high}")
        if not request.member_id:
            return self._join_new(self._storage.find_or_new(request.group_id), request, reply)
        group = self._storage.find(request.group_id)
        if group is None:
            raise UnknownMemberIdError(f"group {request.group_id} does not exist")
        return self._join_known(group, request, reply)

    # Members without an id

    def _join_new(self, group: Group, request: JoinRequest, reply: JoinReply) -> Cancel | None:
        self._check_fit(group, request)
        replaced = group.static_members.get(request.group_instance_id or "", "")
        check_metadata(group, replaced, request.protocols, self._config)
        member_id = f"{request.group_instance_id or request.client_id}-{self._new_member_suffix()}"
        if replaced:
            return self._replace_static(group, member_id, request, reply)
        is_static = request.group_instance_id is not None
        self._check_size(group, 0 if is_static else len(group.pending_members))
        self._storage.add(group)
        if is_static:
            return self._add(group, member_id, request, reply)
        self._rebalances.add_pending_member(group, member_id, request.session_timeout_ms)
        raise MemberIdRequiredError("join again with the member id in the metadata").with_metadata(member_id=member_id)

    def _check_fit(self, group: Group, request: JoinRequest) -> None:
        if group.is_in(GroupState.DEAD):
            raise CoordinatorNotAvailableError(f"group {group.group_id} was deleted")
        if not group.supports(request.protocol_type, request.protocols):
            known = ", ".join(sorted(group.common_protocols())) or "none"
            raise InconsistentGroupProtocolError(
                f"group {group.group_id} has protocol type {group.protocol_type or 'none'} and common assignors "
                f"{known}; this member has {request.protocol_type}, "
                f"{', '.join(one.name for one in request.protocols) or 'none'}"
            )

    def _check_size(self, group: Group, pending: int) -> None:
        if len(group.members) + pending >= self._config.group_max_size:
            raise GroupMaxSizeReachedError(
                f"group {group.group_id} has {self._config.group_max_size} members, group.max.size"
            ).with_metadata(limit="group.max.size")

    def _add(self, group: Group, member_id: str, request: JoinRequest, reply: JoinReply) -> Cancel:
        member = Member(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            on_join=reply,
            is_new=True,
        )
        if not group.members:
            group.protocol_type = request.protocol_type
        if group.is_in(GroupState.PREPARING_REBALANCE) and group.generation == 0:
            group.new_member_added = True
        group.add(member)
        self._rebalances.restart_session(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance(group, "a member joins")
        return self._cancel(group, member, reply)

    # Members with an id

    def _join_known(self, group: Group, request: JoinRequest, reply: JoinReply) -> Cancel | None:
        self._check_fit(group, request)
        check_metadata(group, request.member_id, request.protocols, self._config)
        if request.group_instance_id is None and self._rebalances.remove_pending_member(group, request.member_id):
            self._check_size(group, 0)
            return self._add(group, request.member_id, request, reply)
        member = group.check_member(request.member_id, request.group_instance_id)
        same = member.protocols == request.protocols
        if group.is_in(GroupState.COMPLETING_REBALANCE) and same:
            # The response to the member's last JoinGroup was lost.
            self._rebalances.restart_session(group, member)
            reply(group.join_result(member.member_id))
            return None
        if group.is_in(GroupState.STABLE) and same and member.member_id != group.leader:
            # The leader joins again to assign partitions; any other member missed a response.
            self._rebalances.restart_session(group, member)
            reply(group.join_result(member.member_id, with_members=False))
            return None
        if group.is_in(GroupState.EMPTY):
            raise UnknownMemberIdError(f"group {group.group_id} has no members")
        return self._update(group, member, request, reply)

    def _update(self, group: Group, member: Member, request: JoinRequest, reply: JoinReply) -> Cancel:
        old, member.on_join = member.on_join, None
        if old is not None:
            old(UnknownMemberIdError("the member has sent another JoinGroup"))
        group.update(member, request, reply)
        self._rebalances.restart_session(group, member)
        self._rebalance(group, "a member joins again")
        return self._cancel(group, member, reply)

    def _rebalance(self, group: Group, why: str) -> None:
        self._rebalances.begin(group, why)
        self._rebalances.maybe_complete_join(group)

    def _cancel(self, group: Group, member: Member, reply: JoinReply) -> Cancel:
        """Return a callback for a cancelled JoinGroup: the member may join again within its session timeout."""

        def cancel() -> None:
            if member.on_join is reply:
                member.on_join = None
                member.is_new = False
                member.stop_timer()
                self._rebalances.restart_session(group, member)

        return cancel

    # Static members whose process was replaced

    def _replace_static(self, group: Group, member_id: str, request: JoinRequest, reply: JoinReply) -> Cancel | None:
        """Give a static member a new member id; a stable group rebalances only if its assignor changes (KIP-345)."""
        instance_id = request.group_instance_id
        assert instance_id is not None
        was_leader = group.static_members[instance_id] == group.leader
        member = group.replace_static(instance_id, member_id)
        fenced = FencedInstanceIdError(f"another process has taken over group instance id {instance_id!r}")
        on_join, on_sync = member.on_join, member.on_sync
        member.on_join = member.on_sync = None
        for waiting in (on_join, on_sync):
            if waiting is not None:
                waiting(fenced)
        if not group.is_in(GroupState.STABLE):
            return self._update(group, member, request, reply)
        protocols = member.protocols
        group.update(member, request, None)
        self._rebalances.restart_session(group, member)
        if group.select_protocol() != group.protocol:
            group.set_protocols(member, protocols)
            return self._update(group, member, request, reply)
        generation = group.generation

        def stored(answer: int | PacelineError) -> None:
            if isinstance(answer, PacelineError):
                # The log may still name the old process; joining again repeats the replacement.
                reply(answer)
            elif not group.is_in(GroupState.STABLE) or group.generation != generation:
                reply(UnknownMemberIdError("the group has changed meanwhile; join again"))
            else:
                result = group.join_result(member_id, with_members=was_leader)
                reply(replace(result, skip_assignment=was_leader))

        assignments = {one.member_id: one.assignment for one in group.members.values()}
        self._storage.store_group(group, assignments, stored)
        return None
