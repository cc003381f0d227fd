package io.paceline.client;

/**
 * Records that the consumer has read are no longer in the log (KIP-320). The next poll continues at the divergent offset.
 */
public final class TruncatedException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final String topic;
    private final int partition;
    private final long position;
    private final long divergentOffset;

    TruncatedException(String topic, int partition, long position, long divergentOffset) {
        super(topic + "/" + partition + " was truncated: read up to offset " + position + ", the log diverges at "
                + divergentOffset);
        this.topic = topic;
        this.partition = partition;
        this.position = position;
        this.divergentOffset = divergentOffset;
    }

    /** Returns the topic. */
    public String topic() {
        return topic;
    }

    /** Returns the partition. */
    public int partition() {
        return partition;
    }

    /** Returns the offset up to which records were read, exclusive. */
    public long position() {
        return position;
    }

    /** Returns the first offset whose record differs from the one that was read. */
    public long divergentOffset() {
        return divergentOffset;
    }
}
