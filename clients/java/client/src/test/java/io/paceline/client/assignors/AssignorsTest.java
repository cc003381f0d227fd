package io.paceline.client.assignors;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.paceline.client.TopicPartition;
import io.paceline.client.assignors.Assignor.GroupMember;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

class AssignorsTest {
    private static final Map<String, Integer> COUNTS = Map.of("t0", 3, "t1", 3);

    private static GroupMember member(String id, String... topics) {
        return new GroupMember(id, "", Set.of(topics));
    }

    private static Map<String, String> assigned(Assignor assignor, Map<String, Integer> counts, GroupMember... members) {
        Map<String, String> texts = new TreeMap<>();
        assignor.assign(Arrays.asList(members), counts).forEach((id, partitions) -> texts.put(
                id, partitions.stream().map(TopicPartition::toString).collect(Collectors.joining(" "))));
        return texts;
    }

    @Test
    void rangeGivesRunsOfEachTopicAndTheFirstMembersOnePartitionMore() {
        assertEquals(Map.of("c0", "t0/0 t0/1 t1/0 t1/1", "c1", "t0/2 t1/2"),
                assigned(new RangeAssignor(), COUNTS, member("c1", "t0", "t1"), member("c0", "t0", "t1")));
    }

    @Test
    void roundRobinDealsThePartitionsOfAllTopicsInTurn() {
        assertEquals(Map.of("c0", "t0/0 t0/2 t1/1", "c1", "t0/1 t1/0 t1/2"),
                assigned(new RoundRobinAssignor(), COUNTS, member("c1", "t0", "t1"), member("c0", "t0", "t1")));
    }

    @Test
    void roundRobinSkipsMembersThatDoNotSubscribe() {
        Map<String, Integer> counts = Map.of("t0", 1, "t1", 2, "t2", 3);
        assertEquals(Map.of("c0", "t0/0", "c1", "t1/0", "c2", "t1/1 t2/0 t2/1 t2/2"), assigned(new RoundRobinAssignor(), counts,
                member("c0", "t0"), member("c1", "t0", "t1"), member("c2", "t0", "t1", "t2")));
    }

    @Test
    void aTopicThatDoesNotExistIsLeftOutAndAMemberMayGetNothing() {
        for (Assignor assignor : List.of(new RangeAssignor(), new RoundRobinAssignor())) {
            assertEquals(Map.of("c0", "t0/0", "c1", ""), assigned(assignor, Map.of("t0", 1),
                    member("c0", "missing", "t0"), member("c1", "missing")));
        }
    }

    @Test
    void staticMembersComeFirstByTheirInstanceId() {
        assertEquals(Map.of("a", "t0/2", "z", "t0/0", "y", "t0/1"), assigned(new RangeAssignor(), Map.of("t0", 3),
                member("a", "t0"), new GroupMember("y", "two", Set.of("t0")), new GroupMember("z", "one", Set.of("t0"))));
    }
}
