package io.paceline.conformance;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import io.paceline.client.GroupConfig;
import io.paceline.client.OffsetAndMetadata;
import io.paceline.client.PacelineClient;
import io.paceline.client.ResetPolicy;
import io.paceline.client.TopicPartition;
import io.paceline.client.assignors.Assignor;
import io.paceline.client.assignors.RangeAssignor;
import io.paceline.client.assignors.RoundRobinAssignor;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

/** The group commands of the driver. */
final class Members {
    private static final List<Assignor> ASSIGNORS = List.of(new RangeAssignor(), new RoundRobinAssignor());

    private final Map<String, Member> members = new HashMap<>();

    /** Returns the response to a command, or null for a command that is not about groups. */
    JsonObject perform(PacelineClient client, Driver.Command command) {
        JsonObject result = new JsonObject();
        String name = command.text("member", "");
        switch (command.text("command", "")) {
            case "group_open" -> {
                List<String> topics = texts(command, "topics");
                members.put(name, new Member(client.groupConsumer(config(command)), topics));
            }
            case "group_state" -> member(name).describe(result);
            case "group_commit" -> member(name).commit(offsets(command.field("offsets")));
            case "group_committed" -> result.add("offsets", committed(member(name), command.field("partitions")));
            case "group_pause" -> member(name).pause();
            case "group_resume" -> member(name).resume();
            case "group_close" -> {
                Member closing = member(name);
                members.remove(name);
                closing.close();
            }
            default -> {
                return null;
            }
        }
        return result;
    }

    void close() {
        List<Member> open = List.copyOf(members.values());
        members.clear();
        open.forEach(Member::close);
    }

    private Member member(String name) {
        Member found = members.get(name);
        if (found == null) {
            throw new IllegalArgumentException("no member " + name);
        }
        return found;
    }

    private static List<String> texts(Driver.Command command, String name) {
        List<String> texts = new ArrayList<>();
        command.field(name).getAsJsonArray().forEach(one -> texts.add(one.getAsString()));
        return texts;
    }

    private static GroupConfig config(Driver.Command command) {
        List<Assignor> assignors = new ArrayList<>();
        for (String wanted : command.field("assignors").isJsonNull() ? List.of("range") : texts(command, "assignors")) {
            assignors.add(ASSIGNORS.stream().filter(one -> one.name().equals(wanted)).findFirst()
                    .orElseThrow(() -> new IllegalArgumentException("unknown assignor " + wanted)));
        }
        GroupConfig config = GroupConfig.of(command.text("group_id", ""))
                .withGroupInstanceId(command.text("group_instance_id", ""))
                .withAssignors(assignors.toArray(Assignor[]::new))
                .withSessionTimeout(command.time("session_timeout_ms", 30_000))
                .withHeartbeatInterval(command.time("heartbeat_interval_ms", 100))
                .withMaxPollInterval(command.time("max_poll_interval_ms", 60_000))
                .withReset(ResetPolicy.valueOf(command.text("reset", "earliest").toUpperCase(Locale.ROOT)));
        JsonElement autoCommit = command.field("auto_commit");
        return !autoCommit.isJsonNull() && autoCommit.getAsBoolean()
                ? config.withAutoCommit(command.time("auto_commit_interval_ms", 5_000))
                : config.withoutAutoCommit();
    }

    /** Returns the offsets to commit; null to commit the positions of the consumer. */
    private static Map<TopicPartition, OffsetAndMetadata> offsets(JsonElement given) {
        if (given.isJsonNull()) {
            return null;
        }
        Map<TopicPartition, OffsetAndMetadata> offsets = new TreeMap<>();
        for (JsonElement one : given.getAsJsonArray()) {
            Driver.Command fields = new Driver.Command(one.getAsJsonObject());
            JsonElement epoch = fields.field("leader_epoch");
            offsets.put(new TopicPartition(fields.topic(), fields.partition()), new OffsetAndMetadata(
                    Long.parseLong(fields.text("offset", "0")), epoch.isJsonNull() ? null : epoch.getAsInt(),
                    fields.text("metadata", "")));
        }
        return offsets;
    }

    private static JsonArray committed(Member member, JsonElement given) {
        List<TopicPartition> partitions = new ArrayList<>();
        given.getAsJsonObject().entrySet().forEach(topic -> topic.getValue().getAsJsonArray().forEach(
                number -> partitions.add(new TopicPartition(topic.getKey(), number.getAsInt()))));
        Map<TopicPartition, OffsetAndMetadata> found = member.committed(partitions);
        JsonArray offsets = new JsonArray();
        for (TopicPartition partition : partitions.stream().sorted().toList()) {
            OffsetAndMetadata position = found.get(partition);
            JsonObject entry = new JsonObject();
            entry.addProperty("topic", partition.topic());
            entry.addProperty("partition", partition.partition());
            entry.add("offset", position == null ? JsonNull.INSTANCE : new JsonPrimitive("" + position.offset()));
            entry.addProperty("metadata", position == null ? "" : position.metadata());
            entry.add("leader_epoch", position == null || position.leaderEpoch() == null
                    ? JsonNull.INSTANCE
                    : new JsonPrimitive(position.leaderEpoch()));
            offsets.add(entry);
        }
        return offsets;
    }
}
