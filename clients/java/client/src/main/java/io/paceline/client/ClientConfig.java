package io.paceline.client;

import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Addresses, time-out and TLS files of a client. Immutable; each {@code with} method returns a changed copy.
 *
 * @param bootstrap addresses (host:port) of any brokers or controllers of the cluster
 * @param requestTimeout longest time for one request
 * @param tls PEM files, or null for plaintext connections
 */
public record ClientConfig(List<String> bootstrap, Duration requestTimeout, TlsFiles tls) {
    private static final Pattern ADDRESS = Pattern.compile("(?:\\[[^\\[\\]\\s]+]|[^:\\[\\]\\s]+):(\\d{1,5})");

    /** Checks the addresses and the time-out. */
    public ClientConfig {
        bootstrap = List.copyOf(bootstrap);
        if (bootstrap.isEmpty()) {
            throw new IllegalArgumentException("bootstrap is empty: name the address of at least one broker");
        }
        for (String address : bootstrap) {
            Matcher parts = ADDRESS.matcher(address);
            if (!parts.matches() || Integer.parseInt(parts.group(1)) < 1 || Integer.parseInt(parts.group(1)) > 65_535) {
                throw new IllegalArgumentException("bootstrap address \"" + address
                        + "\" is not host:port, with an IPv6 host in brackets and a port from 1 to 65535");
            }
        }
        Objects.requireNonNull(requestTimeout, "requestTimeout");
        if (requestTimeout.isNegative() || requestTimeout.isZero()) {
            throw new IllegalArgumentException("requestTimeout has to be positive, not " + requestTimeout);
        }
    }

    /** Returns the defaults for a cluster at these addresses: 10 s for a request, TLS when PACELINE_SSL_CA_FILE is set. */
    public static ClientConfig of(String... bootstrap) {
        return new ClientConfig(List.of(bootstrap), Duration.ofSeconds(10), TlsFiles.fromEnvironment(System.getenv()));
    }

    /** Sets the longest time for one request. */
    public ClientConfig withRequestTimeout(Duration timeout) {
        return new ClientConfig(bootstrap, timeout, tls);
    }

    /** Sets the PEM files for TLS, or null for plaintext connections. */
    public ClientConfig withTls(TlsFiles files) {
        return new ClientConfig(bootstrap, requestTimeout, files);
    }
}
