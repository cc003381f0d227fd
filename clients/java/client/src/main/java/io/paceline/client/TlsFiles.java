package io.paceline.client;

import java.nio.file.Path;
import java.util.Map;
import java.util.Objects;

/**
 * PEM files for connections with TLS.
 *
 * @param ca certificates of the authorities that sign the servers' certificates
 * @param certificate certificate chain of this client, or null for a client without identity
 * @param key its private key (PKCS #8, not encrypted), or null
 */
public record TlsFiles(Path ca, Path certificate, Path key) {
    /** Checks that certificate and key come together. */
    public TlsFiles {
        Objects.requireNonNull(ca, "ca");
        if ((certificate == null) != (key == null)) {
            throw new IllegalArgumentException("certificate and key have to be given together");
        }
    }

    /** Checks servers only; the client has no identity. */
    public static TlsFiles ofCa(Path ca) {
        return new TlsFiles(ca, null, null);
    }

    /**
     * Returns the files that PACELINE_SSL_CA_FILE, PACELINE_SSL_CERTIFICATE_FILE and PACELINE_SSL_KEY_FILE name, or null
     * when none is set.
     *
     * @throws IllegalArgumentException if the first is not set but another is: the client would connect without TLS
     */
    public static TlsFiles fromEnvironment(Map<String, String> environment) {
        Path ca = path(environment.get("PACELINE_SSL_CA_FILE"));
        Path certificate = path(environment.get("PACELINE_SSL_CERTIFICATE_FILE"));
        Path key = path(environment.get("PACELINE_SSL_KEY_FILE"));
        if (ca == null && (certificate != null || key != null)) {
            throw new IllegalArgumentException("TLS needs PACELINE_SSL_CA_FILE, too");
        }
        return ca == null ? null : new TlsFiles(ca, certificate, key);
    }

    private static Path path(String text) {
        return text == null || text.isEmpty() ? null : Path.of(text);
    }
}
