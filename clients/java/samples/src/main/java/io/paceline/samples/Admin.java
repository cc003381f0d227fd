package io.paceline.samples;

import io.paceline.client.NewTopic;
import io.paceline.client.PacelineClient;
import io.paceline.client.PacelineException;
import io.paceline.v1.ErrorCode;
import io.paceline.v1.PartitionDescription;
import io.paceline.v1.TopicDescription;

/** Creates a topic and describes it, or deletes it with {@code --delete yes}. */
public final class Admin {
    /** Options: --bootstrap, --topic, --partitions, --replicas, --delete. */
    public static void main(String[] arguments) {
        Options options = new Options(arguments);
        String topic = options.text("topic", "rides");
        try (PacelineClient client = options.client()) {
            if (options.text("delete", "no").equals("yes")) {
                client.admin().deleteTopic(topic);
                System.out.println("deleted " + topic);
                return;
            }
            try {
                client.admin().createTopic(
                        new NewTopic(topic, options.number("partitions", 3), options.number("replicas", 3)));
            } catch (PacelineException failure) {
                if (failure.code() != ErrorCode.ERROR_CODE_TOPIC_ALREADY_EXISTS) {
                    throw failure;
                }
            }
            TopicDescription description = client.admin().describeTopic(topic);
            System.out.println("topic " + topic + " id " + description.getTopicId());
            for (PartitionDescription one : description.getPartitionsList()) {
                System.out.println("partition " + one.getPartition() + ": leader "
                        + (one.hasLeader() ? one.getLeader() : "none") + ", replicas " + one.getReplicasList() + ", in sync "
                        + one.getIsrList());
            }
        }
    }

    private Admin() {}
}
