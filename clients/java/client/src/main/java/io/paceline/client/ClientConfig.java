package io.paceline.client;

import java.time.Duration;
import java.util.List;
import java.util.Objects;

/**
 * How to reach a cluster. Immutable; each {@code with} method returns a changed copy.
 *
 * @param bootstrap addresses (host:port) of any brokers or controllers of the cluster
 * @param requestTimeout bound of one request
 * @param tls PEM files, or null for plaintext connections
 */
public record ClientConfig(List<String> bootstrap, Duration requestTimeout, TlsFiles tls) {
    /** Checks that there is an address and that the time-out is positive. */
    public ClientConfig {
        bootstrap = List.copyOf(bootstrap);
        if (bootstrap.isEmpty()) {
            throw new IllegalArgumentException("bootstrap is empty: name the address of at least one broker");
        }
        for (String address : bootstrap) {
            if (!address.matches(".+:\\d{1,5}")) {
                throw new IllegalArgumentException("bootstrap address \"" + address + "\" is not host:port");
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

    /** Bounds one request. */
    public ClientConfig withRequestTimeout(Duration timeout) {
        return new ClientConfig(bootstrap, timeout, tls);
    }

    /** Connects with TLS. */
    public ClientConfig withTls(TlsFiles files) {
        return new ClientConfig(bootstrap, requestTimeout, files);
    }
}
