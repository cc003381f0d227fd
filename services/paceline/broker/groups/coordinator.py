"""`GroupCoordinator`: serves members and operators of the groups that this broker coordinates.

Every method is called, and every reply comes exactly once, on the node's scheduler. A generation's members and
assignments, and every committed offset, are written to ``__consumer_offsets`` before an answer shows them, so that
another broker can continue from the log. Between rebalances members are in memory only.

Source: docs/protocol/groups.md; Kafka's GroupCoordinator.
"""

from collections.abc import Callable, Iterable, Sequence

from paceline.broker.groups.group import Group, GroupState
from paceline.broker.groups.group_storage import GroupStorage
from paceline.broker.groups.hosted_offsets_topic import HostedOffsetsTopic
from paceline.broker.groups.joining import Joining
from paceline.broker.groups.limits import check_offsets, check_unnamed_fetch
from paceline.broker.groups.metrics import GroupMetrics, GroupNumbers, numbers_of
from paceline.broker.groups.offset_expiration import OffsetExpiration
from paceline.broker.groups.rebalance import Rebalances
from paceline.broker.groups.records import OffsetValue
from paceline.broker.groups.requests import (
    CommitReply,
    CommitRequest,
    CommitResults,
    ErrorReply,
    GroupDescription,
    GroupListing,
    JoinReply,
    JoinRequest,
    LeavingMember,
    SyncReply,
    SyncRequest,
)
from paceline.model.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    PacelineError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.scheduler import Scheduler
from paceline.model.settings import GroupConfig
from paceline.replication.purgatory import Cancel


class GroupCoordinator:
    """The group coordinator of one broker."""

    def __init__(
        self, config: GroupConfig, scheduler: Scheduler, topic: HostedOffsetsTopic, new_member_suffix: Callable[[], str]
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._topic = topic
        self.metrics = GroupMetrics()
        self.storage = GroupStorage(config, scheduler, topic, self._loaded, self.metrics)
        self._rebalances = Rebalances(config, scheduler, self.storage, self.metrics)
        self._joining = Joining(config, scheduler, self.storage, self._rebalances, new_member_suffix)
        self._expiration = OffsetExpiration(config, scheduler, self.storage, self.metrics)

    def start(self) -> None:
        """Start the periodic expiration of offsets."""
        self._expiration.timer.start()

    def stop(self) -> None:
        """Answer every waiting call; the broker stops."""
        self._expiration.timer.stop()
        self.storage.stop()

    def become_leader(self, partition: int, leader_epoch: int) -> None:
        """Load the groups of a partition of ``__consumer_offsets`` that this broker now leads."""
        self.storage.become_leader(partition, leader_epoch)

    def become_follower(self, partition: int) -> None:
        """Drop the groups of a partition that this broker no longer leads."""
        self.storage.become_follower(partition)

    def partitions_deleted(self, partitions: Iterable[TopicPartition]) -> None:
        """Delete the committed offsets of partitions that were deleted."""
        self._expiration.partitions_deleted(frozenset(partitions))

    def _loaded(self, group: Group) -> None:
        for member in group.members.values():
            self._rebalances.restart_session(group, member)

    # Finding the coordinator

    def find_coordinator(self, group_id: str) -> int:
        """Return the broker that coordinates a group; the first call in a cluster creates the topic.

        Raises:
            CoordinatorNotAvailableError: the topic does not exist yet, or the partition has no leader.
        """
        try:
            partition = self.storage.partition_of(group_id)
        except CoordinatorNotAvailableError:
            self._topic.create()
            raise
        leader = self._topic.leader_of(partition)
        if leader is None:
            raise CoordinatorNotAvailableError(f"partition {partition} of __consumer_offsets has no leader")
        return leader

    # Membership

    def join(self, request: JoinRequest, reply: JoinReply) -> Cancel | None:
        """Make the caller a member or let a member take part in a rebalance; reply when all members have joined."""
        try:
            return self._joining.join(request, reply)
        except PacelineError as error:
            reply(error)
            return None

    def sync(self, request: SyncRequest, reply: SyncReply) -> Cancel | None:
        """Store the leader's assignments, and reply with the caller's own assignment."""
        try:
            return self._sync(request, reply)
        except PacelineError as error:
            reply(error)
            return None

    def _sync(self, request: SyncRequest, reply: SyncReply) -> Cancel | None:
        try:
            group = self._member_group(request.group_id, request.member_id)
        except CoordinatorLoadInProgressError:
            # A change of coordinator only loses waiting joins, so the member must join again.
            raise RebalanceInProgressError(f"the coordinator of group {request.group_id} has changed") from None
        member = group.check_member(request.member_id, request.group_instance_id)
        group.check_generation(request.generation)
        if request.protocol_type not in (None, group.protocol_type) or request.protocol not in (None, group.protocol):
            raise InconsistentGroupProtocolError(
                f"group {group.group_id} uses {group.protocol_type} {group.protocol}, "
                f"not {request.protocol_type} {request.protocol}"
            )
        if group.is_in(GroupState.PREPARING_REBALANCE):
            raise RebalanceInProgressError(f"group {group.group_id} rebalances")
        if group.is_in(GroupState.EMPTY):
            raise UnknownMemberIdError(f"group {group.group_id} has no members")
        self._rebalances.remove_pending_sync(group, member)
        if group.is_in(GroupState.STABLE):
            self._rebalances.restart_session(group, member)
            reply(group.sync_result(member))
            return None
        earlier, member.on_sync = member.on_sync, reply
        if earlier is not None:
            earlier(RebalanceInProgressError("the member has sent another SyncGroup"))
        if request.member_id == group.leader and group.written_generation != group.generation:
            self._store_assignments(group, request)

        def cancel() -> None:
            if member.on_sync is reply:
                member.on_sync = None

        return cancel

    def _store_assignments(self, group: Group, request: SyncRequest) -> None:
        assignments = {member_id: request.assignments.get(member_id, b"") for member_id in group.members}
        # Do not write the assignments of a repeated SyncGroup: they could differ from the written ones.
        group.written_generation = generation = group.generation

        def stored(answer: int | PacelineError) -> None:
            if not group.is_in(GroupState.COMPLETING_REBALANCE) or group.generation != generation:
                return  # another rebalance has begun and has answered the waiting members
            if isinstance(answer, PacelineError):
                self._rebalances.fail_sync(group, answer)
                self._rebalances.begin(group, "the assignments were not written")
                return
            for member_id, assignment in assignments.items():
                member = group.members.get(member_id)
                if member is not None:
                    member.assignment = assignment
            group.transition(GroupState.STABLE, self._scheduler.wall_ms())
            self._rebalances.answer_sync(group)

        self.storage.store_group(group, assignments, stored)

    def heartbeat(self, group_id: str, generation: int, member_id: str, instance_id: str | None) -> None:
        """Renew a member's session.

        Raises:
            RebalanceInProgressError: the member must join again.
            PacelineError: the membership was lost, or the group has another coordinator.
        """
        try:
            group = self._member_group(group_id, member_id)
        except CoordinatorLoadInProgressError:
            return  # sessions begin when the group is loaded
        member = group.check_member(member_id, instance_id)
        group.check_generation(generation)
        self._rebalances.restart_session(group, member)
        if group.is_in(GroupState.PREPARING_REBALANCE):
            raise RebalanceInProgressError(f"group {group_id} rebalances")

    def leave(self, group_id: str, members: Sequence[LeavingMember]) -> list[PacelineError | None]:
        """Remove members and return the error for each member that could not be removed.

        Raises:
            PacelineError: the group has another coordinator.
        """
        group = self.storage.find(group_id)
        return [self._leave(group, one) for one in members]

    def _leave(self, group: Group | None, leaving: LeavingMember) -> PacelineError | None:
        if group is None or group.is_in(GroupState.DEAD):
            return UnknownMemberIdError("the group does not exist")
        try:
            member_id = leaving.member_id
            if not member_id and leaving.group_instance_id is not None:
                member_id = group.static_members.get(leaving.group_instance_id, "")
            elif self._rebalances.remove_pending_member(group, member_id):
                self._rebalances.maybe_complete_join(group)
                return None
            member = group.check_member(member_id, leaving.group_instance_id)
        except (UnknownMemberIdError, FencedInstanceIdError) as error:
            return error
        self._rebalances.remove(group, member, "a member has left")
        return None

    def _member_group(self, group_id: str, member_id: str) -> Group:
        group = self.storage.find(group_id)
        if group is None:
            raise UnknownMemberIdError(f"group {group_id} does not exist")
        if group.is_in(GroupState.DEAD):
            raise CoordinatorNotAvailableError(f"group {group_id} was deleted")
        if member_id in group.pending_members:
            raise UnknownMemberIdError(f"member {member_id} has not joined yet")
        return group

    # Offsets

    def commit(self, request: CommitRequest, reply: CommitReply) -> None:
        """Commit offsets; reply with a result per partition, or with the error of the whole request."""
        try:
            group = self._group_to_commit(request)
        except PacelineError as error:
            reply(error)
            return
        results: CommitResults = {}
        accepted: dict[TopicPartition, OffsetValue] = {}
        limit, is_known = self._config.offset_metadata_max_bytes, self._topic.is_known
        # One error for all entries: thousands of texts would keep the event loop for 20 ms.
        too_large = OffsetMetadataTooLargeError(f"the metadata text has more than {limit} bytes")
        unknown = UnknownTopicOrPartitionError("the topic or partition does not exist")
        for topic_partition, value in request.offsets.items():
            if value.metadata and len(value.metadata.encode()) > limit:
                results[topic_partition] = too_large
            elif not is_known(topic_partition):
                results[topic_partition] = unknown
            else:
                results[topic_partition] = None
                accepted[topic_partition] = value
        if not accepted:
            reply(results)
            return
        try:
            check_offsets(group, accepted, self._config)
            self._topic.check_room(group.partition)
        except PacelineError as error:
            reply(error)
            return

        def stored(answer: int | PacelineError) -> None:
            if isinstance(answer, PacelineError):
                results.update(dict.fromkeys(accepted, answer))
            reply(results)

        self.storage.add(group)
        self.storage.store_offsets(group, accepted, stored)

    def _group_to_commit(self, request: CommitRequest) -> Group:
        is_member = request.generation >= 0 or request.member_id or request.group_instance_id is not None
        group = self.storage.find(request.group_id)
        if group is None:
            if is_member:
                raise IllegalGenerationError(f"group {request.group_id} does not exist")
            return self.storage.find_or_new(request.group_id)
        if group.is_in(GroupState.DEAD):
            raise CoordinatorNotAvailableError(f"group {request.group_id} was deleted")
        if request.generation < 0 and group.is_in(GroupState.EMPTY):
            return group
        if not is_member:
            raise UnknownMemberIdError(f"group {request.group_id} has members; only they commit offsets")
        member = group.check_member(request.member_id, request.group_instance_id)
        group.check_generation(request.generation)
        self._rebalances.restart_session(group, member)
        if group.is_in(GroupState.COMPLETING_REBALANCE):
            raise RebalanceInProgressError(f"group {request.group_id} rebalances; join again, then commit")
        return group

    def fetch_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetValue | None]:
        """Return committed offsets: of these partitions, with None where there is none, or all committed offsets.

        Raises:
            PacelineError: the group has another coordinator or is being loaded, or all its offsets are too large for
                one response.
        """
        group = self.storage.find(group_id)
        if group is None or group.is_in(GroupState.DEAD):
            return dict.fromkeys(partitions or ())
        offsets = group.offsets
        if partitions is None:
            check_unnamed_fetch(group)
            return {one: committed.value for one, committed in offsets.items()}
        return {one: committed.value if (committed := offsets.get(one)) is not None else None for one in partitions}

    def numbers(self) -> GroupNumbers:
        """Return the number of groups in each state, and of their members and offsets."""
        return numbers_of(self.storage.loaded_groups())

    # Operators

    def list_groups(self, states: frozenset[str]) -> tuple[list[GroupListing], bool]:
        """Return the groups with a state in ``states``, or all, and whether some groups are still being loaded."""
        listings = [
            group.listing() for group in self.storage.loaded_groups() if not states or group.state.name in states
        ]
        return sorted(listings, key=lambda one: one.group_id), self.storage.is_loading

    def describe(self, group_id: str) -> GroupDescription:
        """Return the description of a group; its state is DEAD when it does not exist."""
        try:
            group = self.storage.find(group_id)
        except PacelineError as error:
            return GroupDescription(group_id, error=error)
        return GroupDescription(group_id) if group is None else group.description()

    def delete(self, group_id: str, reply: ErrorReply) -> None:
        """Delete a group without members and its offsets; reply when the deletion is stored."""
        try:
            group = self.storage.find(group_id)
            if group is None or group.is_in(GroupState.DEAD):
                raise GroupIdNotFoundError(f"group {group_id} does not exist")
            if not group.is_in(GroupState.EMPTY) or group.pending_members:
                raise NonEmptyGroupError(f"group {group_id} has members")
        except PacelineError as error:
            reply(error)
            return
        doomed = group
        self.storage.discard(doomed)

        def stored(answer: int | PacelineError) -> None:
            if isinstance(answer, PacelineError):
                self.storage.restore(doomed, answer)
                reply(answer)
            else:
                reply(None)

        # Include the offsets of commits in progress, which precede the tombstones in the log.
        offsets = dict.fromkeys((*doomed.offsets, *doomed.pending_commits))
        self.storage.store_tombstones(doomed, list(offsets), True, stored)
