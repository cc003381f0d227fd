package io.paceline.samples;

import io.paceline.client.Consumer;
import io.paceline.client.ConsumerRecord;
import io.paceline.client.OffsetSpec;
import io.paceline.client.PacelineClient;
import io.paceline.client.TruncatedException;
import java.time.Duration;

/** Prints the records of a topic from its beginning. Ends after --count records. */
public final class Consume {
    /** Options: --bootstrap, --topic, --count. */
    public static void main(String[] arguments) {
        Options options = new Options(arguments);
        int left = options.number("count", Integer.MAX_VALUE);
        try (PacelineClient client = options.client()) {
            Consumer consumer = client.consumer();
            consumer.assignAll(options.text("topic", "rides"), OffsetSpec.earliest());
            while (left > 0) {
                try {
                    for (ConsumerRecord record : consumer.poll(Duration.ofSeconds(1), left)) {
                        System.out.println(record.partition() + "/" + record.offset() + " " + record.keyText() + "="
                                + record.valueText());
                        left--;
                    }
                } catch (TruncatedException truncated) {
                    // The next poll continues at the divergent offset.
                    System.err.println(truncated.getMessage());
                }
            }
        }
    }

    private Consume() {}
}
