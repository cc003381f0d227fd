package io.paceline.client.assignors;

import io.paceline.client.TopicPartition;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/** A rule that divides partitions among the members of a group. The leader of the group applies it. */
public interface Assignor {
    /** Returns the name on the wire; all members of a group must know the same one. */
    String name();

    /**
     * Returns the partitions of every member, by member id.
     *
     * @param members all members of the group
     * @param partitionCounts partitions of every topic that exists
     */
    Map<String, List<TopicPartition>> assign(Collection<GroupMember> members, Map<String, Integer> partitionCounts);

    /**
     * A member as the leader sees it.
     *
     * @param memberId id that the coordinator gave
     * @param groupInstanceId name of a static member, empty for a dynamic one
     * @param topics topics that the member subscribes to
     */
    record GroupMember(String memberId, String groupInstanceId, Set<String> topics) implements Comparable<GroupMember> {
        /** Sorts static members by their instance id, before dynamic ones by their member id, as Kafka does. */
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
