package io.paceline.client.assignors;

import io.paceline.client.TopicPartition;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Assigns consecutive partitions of each topic separately, as Kafka's RangeAssignor does. If the partitions do not divide
 * evenly, each of the first members gets one more. Members with the same topics get the same partition numbers of topics of
 * the same size, so that one member reads the records of a key in all these topics.
 *
 * <p>Example: t0 and t1 with 3 partitions each and members c0, c1 give c0: t0/0 t0/1 t1/0 t1/1, c1: t0/2 t1/2.
 */
public final class RangeAssignor implements Assignor {
    @Override
    public String name() {
        return "range";
    }

    @Override
    public Map<String, List<TopicPartition>> assign(Collection<GroupMember> members, Map<String, Integer> partitionCounts) {
        List<GroupMember> ordered = members.stream().sorted().toList();
        Map<String, List<TopicPartition>> assigned = new LinkedHashMap<>();
        ordered.forEach(member -> assigned.put(member.memberId(), new ArrayList<>()));
        for (String topic : Assignor.topicsOf(members, partitionCounts)) {
            List<GroupMember> takers = ordered.stream().filter(member -> member.topics().contains(topic)).toList();
            int each = partitionCounts.get(topic) / takers.size();
            int more = partitionCounts.get(topic) % takers.size();
            int begin = 0;
            for (int place = 0; place < takers.size(); place++) {
                int end = begin + each + (place < more ? 1 : 0);
                for (; begin < end; begin++) {
                    assigned.get(takers.get(place).memberId()).add(new TopicPartition(topic, begin));
                }
            }
        }
        return assigned;
    }
}
