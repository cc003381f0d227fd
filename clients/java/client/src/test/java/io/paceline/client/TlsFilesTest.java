package io.paceline.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.Test;

class TlsFilesTest {
    @Test
    void theEnvironmentNamesTheFiles() {
        assertNull(TlsFiles.fromEnvironment(Map.of()));
        assertEquals(
                new TlsFiles(Path.of("ca"), Path.of("certificate"), Path.of("key")),
                TlsFiles.fromEnvironment(Map.of("PACELINE_SSL_CA_FILE", "ca", "PACELINE_SSL_CERTIFICATE_FILE", "certificate",
                        "PACELINE_SSL_KEY_FILE", "key")));
    }

    @Test
    void aCertificateWithoutItsKeyIsRefused() {
        assertThrows(IllegalArgumentException.class, () -> new TlsFiles(Path.of("ca"), Path.of("certificate"), null));
    }

    @Test
    void aMissingFileIsRefusedWhenTheClientIsMade() {
        ClientConfig config = ClientConfig.of("127.0.0.1:1").withTls(TlsFiles.ofCa(Path.of("no-such-file.crt")));
        assertThrows(IllegalArgumentException.class, () -> new PacelineClient(config).close());
    }
}
