package io.paceline.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class ClientConfigTest {
    @ParameterizedTest
    @ValueSource(strings = {"::1:9092", "[::1]", "[::1:9092", "host", "host:", ":9092", "host:0", "host:65536", "a:1:2", " a:1", ""})
    void anAddressThatCannotBeConnectedToIsRefused(String address) {
        assertThrows(IllegalArgumentException.class, () -> ClientConfig.of("broker-1:9092", address));
    }

    @Test
    void namesAndAddressesOfBothKindsAreTaken() {
        String[] addresses = {"broker-1.example:9092", "127.0.0.1:1", "[::1]:65535"};
        assertEquals(List.of(addresses), ClientConfig.of(addresses).bootstrap());
    }
}
