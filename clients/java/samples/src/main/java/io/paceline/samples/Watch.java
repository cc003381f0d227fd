package io.paceline.samples;

import io.paceline.client.PacelineClient;
import java.time.Instant;

/** Prints the events of a cluster as they happen: elections, changes of in-sync replicas, brokers, topics. */
public final class Watch {
    /** Options: --bootstrap, --count (ends after so many events). */
    public static void main(String[] arguments) {
        Options options = new Options(arguments);
        int[] left = {options.number("count", Integer.MAX_VALUE)};
        try (PacelineClient client = options.client()) {
            client.admin().watchEvents(event -> {
                System.out.println(Instant.ofEpochMilli(event.getTimeMs()) + " " + event.getSource() + " "
                        + event.getEventCase() + " " + event.getCause());
                left[0]--;
                return left[0] > 0;
            });
        }
    }

    private Watch() {}
}
