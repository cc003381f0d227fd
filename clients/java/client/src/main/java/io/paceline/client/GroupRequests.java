package io.paceline.client;

import io.paceline.client.assignors.Assignor;
import io.paceline.v1.ConsumerAssignment;
import io.paceline.v1.ConsumerSubscription;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.GroupProtocol;
import io.paceline.v1.HeartbeatRequest;
import io.paceline.v1.JoinGroupRequest;
import io.paceline.v1.JoinGroupResponse;
import io.paceline.v1.LeaveGroupRequest;
import io.paceline.v1.LeavingMember;
import io.paceline.v1.MemberAssignment;
import io.paceline.v1.SyncGroupRequest;
import io.paceline.v1.TopicPartitions;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/** Builds the requests of a group member, and converts the partitions in its messages. */
final class GroupRequests {
    private GroupRequests() {}

    static JoinGroupRequest join(GroupConfig config, String memberId, Set<String> topics) {
        JoinGroupRequest.Builder request = JoinGroupRequest.newBuilder()
                .setGroupId(config.groupId).setGroupInstanceId(config.groupInstanceId).setMemberId(memberId)
                .setSessionTimeoutMs(config.sessionTimeoutMs()).setRebalanceTimeoutMs(config.maxPollIntervalMs())
                .setClientId(config.clientId);
        var subscription = ConsumerSubscription.newBuilder().addAllTopics(new TreeSet<>(topics));
        for (Assignor assignor : config.assignors) {
            request.addProtocols(GroupProtocol.newBuilder().setName(assignor.name()).setSubscription(subscription));
        }
        return request.build();
    }

    /** Returns the request for the member's partitions; the leader's request has the assignments of all members. */
    static SyncGroupRequest sync(GroupConfig config, JoinGroupResponse answer, List<MemberAssignment> assignments) {
        return SyncGroupRequest.newBuilder()
                .setGroupId(config.groupId).setGroupInstanceId(config.groupInstanceId)
                .setGenerationId(answer.getGenerationId()).setMemberId(answer.getMemberId())
                .setProtocolType(answer.getProtocolType()).setProtocolName(answer.getProtocolName())
                .addAllAssignments(assignments).build();
    }

    static HeartbeatRequest heartbeat(GroupConfig config, MemberState.Identity identity) {
        return HeartbeatRequest.newBuilder().setGroupId(config.groupId)
                .setGroupInstanceId(config.groupInstanceId).setMemberId(identity.memberId())
                .setGenerationId(identity.generation()).build();
    }

    static LeaveGroupRequest leave(GroupConfig config, String memberId) {
        return LeaveGroupRequest.newBuilder().setGroupId(config.groupId)
                .addMembers(LeavingMember.newBuilder().setMemberId(memberId)).build();
    }

    /** Returns the topics of all members. */
    static Set<String> topicsOf(JoinGroupResponse answer) {
        Set<String> topics = new TreeSet<>();
        answer.getMembersList().forEach(member -> topics.addAll(member.getSubscription().getTopicsList()));
        return topics;
    }

    /** Returns the assignments of all members; topics with a count of 0 do not exist. */
    static List<MemberAssignment> assign(GroupConfig config, JoinGroupResponse answer, Map<String, Integer> counts) {
        Assignor assignor = config.assignors.stream()
                .filter(one -> one.name().equals(answer.getProtocolName())).findFirst()
                .orElseThrow(() -> Failures.of("assigning partitions of group " + config.groupId,
                        ErrorCode.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL,
                        "the coordinator chose the assignor " + answer.getProtocolName() + ", which this member does not know"));
        List<Assignor.GroupMember> members = answer.getMembersList().stream()
                .map(member -> new Assignor.GroupMember(member.getMemberId(), member.getGroupInstanceId(),
                        new TreeSet<>(member.getSubscription().getTopicsList())))
                .toList();
        Map<String, Integer> existing = new HashMap<>(counts);
        existing.values().removeIf(count -> count == 0);
        List<MemberAssignment> assignments = new ArrayList<>();
        assignor.assign(members, existing).forEach((member, partitions) -> assignments.add(
                MemberAssignment.newBuilder().setMemberId(member).setAssignment(
                        ConsumerAssignment.newBuilder().addAllPartitions(onWire(partitions))).build()));
        return assignments;
    }

    static List<TopicPartitions> onWire(Collection<TopicPartition> partitions) {
        Map<String, TopicPartitions.Builder> byTopic = new TreeMap<>();
        partitions.forEach(one -> byTopic
                .computeIfAbsent(one.topic(), topic -> TopicPartitions.newBuilder().setTopic(topic))
                .addPartitions(one.partition()));
        return byTopic.values().stream().map(TopicPartitions.Builder::build).toList();
    }

    static Set<TopicPartition> partitionsOf(ConsumerAssignment assignment) {
        Set<TopicPartition> partitions = new TreeSet<>();
        for (TopicPartitions one : assignment.getPartitionsList()) {
            one.getPartitionsList().forEach(number -> partitions.add(new TopicPartition(one.getTopic(), number)));
        }
        return partitions;
    }
}
