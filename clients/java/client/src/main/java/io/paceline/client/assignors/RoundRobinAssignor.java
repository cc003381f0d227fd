package io.paceline.client.assignors;

import io.paceline.client.TopicPartition;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Assigns the sorted partitions of all topics to the members in turn, as Kafka's RoundRobinAssignor does. Skips a member that
 * does not subscribe to the topic.
 *
 * <p>Example: t0 and t1 with 3 partitions each and members c0, c1 give c0: t0/0 t0/2 t1/1, c1: t0/1 t1/0 t1/2.
 */
public final class RoundRobinAssignor implements Assignor {
    @Override
    public String name() {
        return "roundrobin";
    }

    @Override
    public Map<String, List<TopicPartition>> assign(Collection<GroupMember> members, Map<String, Integer> partitionCounts) {
        List<GroupMember> ordered = members.stream().sorted().toList();
        Map<String, List<TopicPartition>> assigned = new LinkedHashMap<>();
        ordered.forEach(member -> assigned.put(member.memberId(), new ArrayList<>()));
        int turn = 0;
        for (String topic : Assignor.topicsOf(members, partitionCounts)) {
            for (int partition = 0; partition < partitionCounts.get(topic); partition++) {
                while (!ordered.get(turn % ordered.size()).topics().contains(topic)) {
                    turn++;
                }
                assigned.get(ordered.get(turn++ % ordered.size()).memberId()).add(new TopicPartition(topic, partition));
            }
        }
        return assigned;
    }
}
