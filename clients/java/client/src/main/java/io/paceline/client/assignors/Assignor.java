package io.paceline.client.assignors;

import io.paceline.client.TopicPartition;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/** Assigns partitions to the members of a group. The leader of the group calls it. */
public interface Assignor {
    /** Returns the name that members send to the coordinator; all members of a group need one name in common. */
    String name();

    /**
     * Returns the partitions of each member, by member id.
     *
     * @param members all members of the group
     * @param partitionCounts number of partitions by topic, without topics that do not exist
     */
    Map<String, List<TopicPartition>> assign(Collection<GroupMember> members, Map<String, Integer> partitionCounts);

    /**
     * A member of the group.
     *
     * @param memberId id from the coordinator
     * @param groupInstanceId instance id of a static member; empty for a dynamic member
     * @param topics topics that the member subscribes to
     */
    record GroupMember(String memberId, String groupInstanceId, Set<String> topics) implements Comparable<GroupMember> {
        /** Sorts static members by instance id before dynamic members by member id, as Kafka does. */
        @Override
        public int compareTo(GroupMember other) {
            boolean isStatic = !groupInstanceId.isEmpty();
            if (isStatic != !other.groupInstanceId.isEmpty()) {
                return isStatic ? -1 : 1;
            }
            String mine = isStatic ? groupInstanceId : memberId;
            String others = isStatic ? other.groupInstanceId : other.memberId;
            return Arrays.compareUnsigned(mine.getBytes(StandardCharsets.UTF_8), others.getBytes(StandardCharsets.UTF_8));
        }
    }

    /** Returns the topics that exist and have a subscriber, sorted. */
    static Set<String> topicsOf(Collection<GroupMember> members, Map<String, Integer> partitionCounts) {
        Set<String> topics = new TreeSet<>();
        members.forEach(member -> topics.addAll(member.topics()));
        topics.retainAll(partitionCounts.keySet());
        return topics;
    }
}
