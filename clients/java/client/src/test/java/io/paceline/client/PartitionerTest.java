package io.paceline.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class PartitionerTest {
    @ParameterizedTest
    @CsvSource({
        "'', 275646681, 9", "21, -973932308, 0", "foobar, -790332482, 6", "a-little-bit-long-string, -985981536, 8",
        "a-little-bit-longer-string, -1486304829, 11", "abc, 479470107, 3",
    })
    void partitionsMatchTheVectorsOfTheContract(String key, int hash, int partition) {
        byte[] bytes = key.getBytes(StandardCharsets.UTF_8);
        assertEquals(hash, Partitioner.murmur2(bytes));
        assertEquals(partition, Partitioner.partitionForKey(bytes, 12));
    }

    @Test
    void sequenceNumbersWrapToZero() {
        assertEquals(0, PartitionQueue.after(Integer.MAX_VALUE, 1));
        assertEquals(2, PartitionQueue.after(Integer.MAX_VALUE - 7, 10));
    }
}
