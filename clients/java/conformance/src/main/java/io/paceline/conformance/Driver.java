package io.paceline.conformance;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import io.paceline.client.ClientConfig;
import io.paceline.client.Consumer;
import io.paceline.client.ConsumerConfig;
import io.paceline.client.ConsumerRecord;
import io.paceline.client.NewTopic;
import io.paceline.client.OffsetSpec;
import io.paceline.client.PacelineClient;
import io.paceline.client.PacelineException;
import io.paceline.client.Partitioner;
import io.paceline.client.Producer;
import io.paceline.client.ProducerConfig;
import io.paceline.client.ProducerRecord;
import io.paceline.client.RecordHeader;
import io.paceline.client.RecordMetadata;
import io.paceline.client.ResetPolicy;
import io.paceline.client.TlsFiles;
import io.paceline.client.TruncatedException;
import io.paceline.v1.PartitionDescription;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.OptionalLong;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

/** The driver of the Java client for tests/conformance: JSON lines on stdin and stdout. */
public final class Driver {
    private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();

    private final Map<String, Consumer> consumers = new HashMap<>();
    private final Members members = new Members();
    private PacelineClient client;
    private Producer producer;
    private Duration timeout = Duration.ofSeconds(30);

    private static final class UnsupportedCommandException extends RuntimeException {
        private static final long serialVersionUID = 1;
    }

    /** Reads commands until the end of stdin. */
    public static void main(String[] arguments) throws IOException {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Driver driver = new Driver();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.print(GSON.toJson(driver.answer(line)) + "\n");
            answers.flush();
        }
        driver.close();
        System.exit(0);
    }

    private JsonObject answer(String line) {
        JsonObject answer = new JsonObject();
        try {
            JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            answer.add("id", command.get("id"));
            answer.add("ok", perform(new Command(command)));
        } catch (UnsupportedCommandException error) {
            answer.addProperty("unsupported", "the driver has no such command");
        } catch (RuntimeException error) {
            answer.add("error", failure(error));
        }
        return answer;
    }

    static JsonObject failure(Throwable error) {
        Throwable cause = error instanceof CompletionException ? error.getCause() : error;
        JsonObject object = new JsonObject();
        boolean known = cause instanceof PacelineException;
        boolean refused = cause instanceof IllegalArgumentException;
        object.addProperty("code", known ? ((PacelineException) cause).codeName()
                : refused ? "INVALID_REQUEST" : "UNKNOWN_SERVER_ERROR");
        object.addProperty("message", String.valueOf(cause.getMessage()));
        object.addProperty("definite", refused || known && ((PacelineException) cause).definite());
        return object;
    }

    /** A command with defaults for missing arguments. */
    record Command(JsonObject fields) {
        JsonElement field(String name) {
            JsonElement found = fields.get(name);
            return found == null ? JsonNull.INSTANCE : found;
        }

        String text(String name, String byDefault) {
            JsonElement found = fields.get(name);
            return found == null || found.isJsonNull() ? byDefault : found.getAsString();
        }

        int number(String name, int byDefault) {
            JsonElement found = fields.get(name);
            return found == null || found.isJsonNull() ? byDefault : found.getAsInt();
        }

        Duration time(String name, long byDefaultMs) {
            return Duration.ofMillis(number(name, (int) byDefaultMs));
        }

        String topic() {
            return text("topic", "");
        }

        int partition() {
            return number("partition", 0);
        }
    }

    private JsonObject perform(Command command) {
        JsonObject result = new JsonObject();
        Duration limit = command.time("timeout_ms", timeout.toMillis());
        switch (command.text("command", "")) {
            case "hello" -> {
                result.addProperty("language", "java");
                result.addProperty("client", "paceline-java");
                result.addProperty("version", "0.1.0");
            }
            case "partition_for_key" -> result.addProperty("partition", Partitioner.partitionForKey(
                    Base64.getDecoder().decode(command.text("key", "")), command.number("partition_count", 1)));
            case "open" -> open(command);
            case "produce" -> result.add("results", produce(command));
            case "consume_open" -> consumers.put(command.text("consumer", ""), consumer(command));
            case "consume_poll" -> poll(command, limit, result);
            case "consume_close" -> consumers.remove(command.text("consumer", ""));
            case "list_offset" -> {
                OptionalLong offset = client.admin().listOffset(command.topic(), command.partition(), place(command), limit);
                result.add("offset", offset.isPresent() ? new JsonPrimitive("" + offset.getAsLong()) : JsonNull.INSTANCE);
            }
            case "create_topic" -> result.addProperty("topic_id", client.admin().createTopic(newTopic(command), limit));
            case "delete_topic" -> client.admin().deleteTopic(command.topic(), limit);
            case "describe_topic" -> result.add("partitions", describe(command, limit));
            case "close" -> close();
            default -> {
                result = members.perform(client, command);
                if (result == null) {
                    throw new UnsupportedCommandException();
                }
            }
        }
        return result;
    }

    private void open(Command command) {
        close();
        String[] bootstrap = GSON.fromJson(command.fields.get("bootstrap"), String[].class);
        client = new PacelineClient(ClientConfig.of(bootstrap)
                .withRequestTimeout(command.time("request_timeout_ms", 10_000)).withTls(tls(command.field("tls"))));
        timeout = command.time("delivery_timeout_ms", 30_000);
        producer = client.producer(ProducerConfig.defaults()
                .withDeliveryTimeout(timeout).withLinger(command.time("linger_ms", 0)));
    }

    private static TlsFiles tls(JsonElement given) {
        if (given.isJsonNull()) {
            return null;
        }
        Command files = new Command(given.getAsJsonObject());
        String certificate = files.text("certificate_file", null);
        return new TlsFiles(Path.of(files.text("ca_file", "")), certificate == null ? null : Path.of(certificate),
                certificate == null ? null : Path.of(files.text("key_file", "")));
    }

    private void close() {
        members.close();
        consumers.clear();
        if (producer != null) {
            producer.close(Duration.ofSeconds(1));
            producer = null;
        }
        if (client != null) {
            client.close();
            client = null;
        }
    }

    private JsonArray produce(Command command) {
        List<CompletableFuture<RecordMetadata>> outcomes = new ArrayList<>();
        for (JsonElement one : command.fields.getAsJsonArray("records")) {
            outcomes.add(producer.send(record(command.topic(), new Command(one.getAsJsonObject()))));
        }
        JsonArray results = new JsonArray();
        for (CompletableFuture<RecordMetadata> outcome : outcomes) {
            JsonObject result = new JsonObject();
            try {
                RecordMetadata where = outcome.join();
                result.addProperty("partition", where.partition());
                result.addProperty("offset", "" + where.offset());
            } catch (CompletionException error) {
                result.add("error", failure(error));
            }
            results.add(result);
        }
        return results;
    }

    private static ProducerRecord record(String topic, Command fields) {
        List<RecordHeader> headers = new ArrayList<>();
        JsonElement pairs = fields.fields.get("headers");
        for (JsonElement pair : pairs == null || pairs.isJsonNull() ? new JsonArray() : pairs.getAsJsonArray()) {
            JsonElement value = pair.getAsJsonArray().get(1);
            headers.add(new RecordHeader(
                    pair.getAsJsonArray().get(0).getAsString(), decode(value.isJsonNull() ? null : value.getAsString())));
        }
        String timestamp = fields.text("timestamp_ms", null);
        int partition = fields.number("partition", -1);
        return new ProducerRecord(
                topic, partition < 0 ? null : partition, decode(fields.text("key", null)), decode(fields.text("value", null)),
                headers, timestamp == null ? null : Instant.ofEpochMilli(Long.parseLong(timestamp)));
    }

    private static byte[] decode(String base64) {
        return base64 == null ? null : Base64.getDecoder().decode(base64);
    }

    private static JsonElement encode(byte[] data) {
        return data == null ? JsonNull.INSTANCE : new JsonPrimitive(Base64.getEncoder().encodeToString(data));
    }

    private Consumer consumer(Command command) {
        ResetPolicy reset = ResetPolicy.valueOf(command.text("reset", "earliest").toUpperCase(Locale.ROOT));
        Consumer consumer = client.consumer(ConsumerConfig.defaults().withReset(reset));
        String start = command.text("start", "earliest");
        switch (start) {
            case "earliest" -> consumer.assign(command.topic(), command.partition(), OffsetSpec.earliest());
            // The end is found now, so that records sent after this command are read.
            case "latest" -> consumer.assign(command.topic(), command.partition(), client.admin().listOffset(
                    command.topic(), command.partition(), OffsetSpec.latest(), timeout).orElseThrow());
            default -> consumer.assign(command.topic(), command.partition(), Long.parseLong(start));
        }
        return consumer;
    }

    private void poll(Command command, Duration limit, JsonObject result) {
        JsonArray records = new JsonArray();
        result.add("records", records);
        result.add("truncated", JsonNull.INSTANCE);
        Consumer consumer = consumers.get(command.text("consumer", ""));
        if (consumer == null) {
            throw new IllegalArgumentException("no consumer " + command.text("consumer", ""));
        }
        try {
            for (ConsumerRecord record : consumer.poll(limit, command.number("max_records", 100))) {
                records.add(encode(record));
            }
        } catch (TruncatedException error) {
            JsonObject truncated = new JsonObject();
            truncated.addProperty("position", "" + error.position());
            truncated.addProperty("divergent_offset", "" + error.divergentOffset());
            result.add("truncated", truncated);
        }
    }

    private static JsonObject encode(ConsumerRecord record) {
        JsonObject object = new JsonObject();
        object.addProperty("partition", record.partition());
        object.addProperty("offset", "" + record.offset());
        object.add("key", encode(record.key()));
        object.add("value", encode(record.value()));
        JsonArray headers = new JsonArray();
        for (RecordHeader header : record.headers()) {
            JsonArray pair = new JsonArray();
            pair.add(header.key());
            pair.add(encode(header.value()));
            headers.add(pair);
        }
        object.add("headers", headers);
        object.addProperty("timestamp_ms", "" + record.timestamp().toEpochMilli());
        return object;
    }

    private static OffsetSpec place(Command command) {
        return switch (command.text("at", "latest")) {
            case "earliest" -> OffsetSpec.earliest();
            case "timestamp" -> OffsetSpec.at(Instant.ofEpochMilli(Long.parseLong(command.text("timestamp_ms", "0"))));
            default -> OffsetSpec.latest();
        };
    }

    private static NewTopic newTopic(Command command) {
        Map<String, String> configs = new TreeMap<>();
        JsonElement given = command.fields.get("configs");
        if (given != null && !given.isJsonNull()) {
            given.getAsJsonObject().entrySet().forEach(one -> configs.put(one.getKey(), one.getValue().getAsString()));
        }
        int partitions = command.number("partitions", 0);
        int factor = command.number("replication_factor", 0);
        return new NewTopic(command.topic(), partitions == 0 ? null : partitions, factor == 0 ? null : factor, configs);
    }

    private JsonArray describe(Command command, Duration limit) {
        JsonArray partitions = new JsonArray();
        for (PartitionDescription one : client.admin().describeTopic(command.topic(), limit).getPartitionsList()) {
            JsonObject partition = new JsonObject();
            partition.addProperty("partition", one.getPartition());
            partition.add("leader", one.hasLeader() ? new JsonPrimitive(one.getLeader()) : JsonNull.INSTANCE);
            partition.add("replicas", GSON.toJsonTree(one.getReplicasList()));
            partition.add("isr", GSON.toJsonTree(one.getIsrList()));
            partitions.add(partition);
        }
        return partitions;
    }
}
