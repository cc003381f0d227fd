package io.paceline.conformance;

import com.google.gson.JsonArray;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import io.paceline.client.ConsumerRebalanceListener;
import io.paceline.client.GroupConsumer;
import io.paceline.client.OffsetAndMetadata;
import io.paceline.client.TopicPartition;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;

/** A group member that its own thread polls; commands and polls take turns. */
final class Member implements ConsumerRebalanceListener {
    private static final Duration SLICE = Duration.ofMillis(100);

    private final GroupConsumer consumer;
    /** Fair, so that a waiting command runs after the current poll. */
    private final ReentrantLock turn = new ReentrantLock(true);
    private final JsonArray events = new JsonArray();
    private final Map<String, JsonArray> read = new TreeMap<>();
    private RuntimeException error;
    private boolean paused;
    private boolean closed;

    Member(GroupConsumer consumer, List<String> topics) {
        this.consumer = consumer;
        consumer.subscribe(topics, this);
        Thread poller = new Thread(this::poll, "member");
        poller.setDaemon(true);
        poller.start();
    }

    private void poll() {
        while (true) {
            turn.lock();
            try {
                if (closed || error != null) {
                    return;
                }
                if (!paused) {
                    consumer.poll(SLICE).forEach(record -> read
                            .computeIfAbsent(record.topic() + "/" + record.partition(), name -> new JsonArray())
                            .add("" + record.offset()));
                }
            } catch (RuntimeException failure) {
                error = failure;
            } finally {
                turn.unlock();
            }
            try {
                Thread.sleep(1);
            } catch (InterruptedException impossible) {
                return;
            }
        }
    }

    private <T> T inTurn(Supplier<T> command) {
        turn.lock();
        try {
            return command.get();
        } finally {
            turn.unlock();
        }
    }

    @Override
    public void onPartitionsAssigned(Set<TopicPartition> partitions) {
        add("assigned", partitions);
    }

    @Override
    public void onPartitionsRevoked(Set<TopicPartition> partitions) {
        add("revoked", partitions);
    }

    @Override
    public void onPartitionsLost(Set<TopicPartition> partitions) {
        add("lost", partitions);
    }

    private void add(String event, Set<TopicPartition> partitions) {
        if (!partitions.isEmpty()) {
            JsonArray pair = new JsonArray();
            pair.add(event);
            pair.add(byTopic(partitions));
            events.add(pair);
        }
    }

    private static JsonObject byTopic(Collection<TopicPartition> partitions) {
        JsonObject topics = new JsonObject();
        for (TopicPartition one : new TreeSet<>(partitions)) {
            if (!topics.has(one.topic())) {
                topics.add(one.topic(), new JsonArray());
            }
            topics.getAsJsonArray(one.topic()).add(one.partition());
        }
        return topics;
    }

    void describe(JsonObject state) {
        inTurn(() -> {
            int generation = consumer.generation();
            state.addProperty("member_id", generation < 0 ? "" : consumer.memberId());
            state.addProperty("generation", generation);
            state.add("assignment", byTopic(consumer.assignment()));
            JsonObject positions = new JsonObject();
            for (TopicPartition one : consumer.assignment()) {
                consumer.position(one).ifPresent(offset -> positions.addProperty(one.toString(), "" + offset));
            }
            state.add("positions", positions);
            JsonObject offsets = new JsonObject();
            read.forEach((partition, all) -> offsets.add(partition, all.deepCopy()));
            state.add("read", offsets);
            state.add("events", events.deepCopy());
            state.add("error", error == null ? JsonNull.INSTANCE : Driver.failure(error));
            return null;
        });
    }

    void commit(Map<TopicPartition, OffsetAndMetadata> offsets) {
        inTurn(() -> {
            if (offsets == null) {
                consumer.commitSync();
            } else {
                consumer.commitSync(offsets);
            }
            return null;
        });
    }

    Map<TopicPartition, OffsetAndMetadata> committed(List<TopicPartition> partitions) {
        return inTurn(() -> consumer.committed(partitions));
    }

    void pause() {
        inTurn(() -> paused = true);
    }

    void resume() {
        inTurn(() -> paused = false);
    }

    void close() {
        inTurn(() -> {
            closed = true;
            consumer.close(Duration.ofSeconds(10));
            return null;
        });
    }
}
