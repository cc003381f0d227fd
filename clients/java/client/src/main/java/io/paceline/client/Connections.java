package io.paceline.client;

import io.grpc.ChannelCredentials;
import io.grpc.ConnectivityState;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.TlsChannelCredentials;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.util.AdvancedTlsX509KeyManager;
import io.grpc.util.AdvancedTlsX509TrustManager;
import io.grpc.util.CertificateUtils;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.cert.CertificateException;
import java.security.cert.X509Certificate;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * Keeps one channel per address; the first use of an address creates its channel. One to a former address of the cluster
 * stays, but gRPC closes its transport after 30 minutes without a call ({@link NettyChannelBuilder#idleTimeout}).
 */
final class Connections implements AutoCloseable {
    private static final int LARGEST_MESSAGE_BYTES = 64 * 1024 * 1024;
    private static final Duration RELOAD_INTERVAL = Duration.ofMinutes(1);

    private final Map<String, ManagedChannel> channels = new HashMap<>();
    private final ChannelCredentials credentials;
    private final Warnings warnings = new Warnings();
    private final Throttles throttles = new Throttles();
    /** Reads the TLS files again periodically; null without TLS. */
    private ScheduledExecutorService reloader;
    private volatile boolean closed;

    Connections(TlsFiles tls) {
        this(tls, RELOAD_INTERVAL);
    }

    /** Creates connections that read the CA file again at this interval. */
    Connections(TlsFiles tls, Duration reloadInterval) {
        try {
            credentials = tls == null ? InsecureChannelCredentials.create() : tlsCredentials(tls, reloadInterval.toMillis());
        } catch (IOException | GeneralSecurityException error) {
            close();
            throw new IllegalArgumentException("cannot use the PEM files " + tls + ": " + error.getMessage(), error);
        }
    }

    private ChannelCredentials tlsCredentials(TlsFiles tls, long reloadMs) throws IOException, GeneralSecurityException {
        reloader = Executors.newSingleThreadScheduledExecutor(task -> daemon(task, "paceline-certificates"));
        var authorities = AdvancedTlsX509TrustManager.newBuilder().build();
        authorities.updateTrustCredentials(certificatesIn(tls.ca()));
        reloader.scheduleWithFixedDelay(() -> reload(authorities, tls.ca()), reloadMs, reloadMs, TimeUnit.MILLISECONDS);
        TlsChannelCredentials.Builder builder = TlsChannelCredentials.newBuilder().trustManager(authorities);
        if (tls.certificate() != null) {
            checkPrivate(tls.key());
            var manager = new AdvancedTlsX509KeyManager();
            manager.updateIdentityCredentials(
                    tls.certificate().toFile(), tls.key().toFile(), 1, TimeUnit.MINUTES, reloader);
            builder.keyManager(manager);
        }
        return builder.build();
    }

    /**
     * Refuses a key that other users can read, as brokers and controllers do. The group may read a key of root: Kubernetes
     * mounts secrets in this way.
     */
    private static void checkPrivate(Path key) throws IOException {
        if (!FileSystems.getDefault().supportedFileAttributeViews().contains("unix")) {
            return;
        }
        boolean isRoots = Integer.valueOf(0).equals(Files.getAttribute(key, "unix:uid"));
        int forbidden = isRoots && !"root".equals(System.getProperty("user.name")) ? 0037 : 0077;
        if (((Integer) Files.getAttribute(key, "unix:mode") & forbidden) != 0) {
            throw new IOException(key + " is readable by other users: chmod 600 " + key);
        }
    }

    private static X509Certificate[] certificatesIn(Path file) throws IOException, GeneralSecurityException {
        try (InputStream pem = Files.newInputStream(file)) {
            X509Certificate[] found = CertificateUtils.getX509Certificates(pem);
            if (found.length == 0) {
                throw new CertificateException(file + " has no certificate");
            }
            return found;
        }
    }

    /** Reads the CA file again for later connections; keeps the previous certificates when it cannot be read. */
    private void reload(AdvancedTlsX509TrustManager authorities, Path file) {
        try {
            authorities.updateTrustCredentials(certificatesIn(file));
            warnings.clear();
        } catch (IOException | GeneralSecurityException | RuntimeException failure) {
            warnings.add(new IllegalArgumentException("cannot read the CA file " + file + " again: " + failure, failure));
        }
    }

    static Thread daemon(Runnable task, String name) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        return thread;
    }

    synchronized ManagedChannel to(String address) {
        if (closed) {
            throw new IllegalStateException("the client is closed");
        }
        ManagedChannel channel = channels.computeIfAbsent(address, target -> NettyChannelBuilder.forTarget(target, credentials)
                .maxInboundMessageSize(LARGEST_MESSAGE_BYTES)
                .keepAliveTime(30, TimeUnit.SECONDS)
                .keepAliveTimeout(10, TimeUnit.SECONDS)
                .disableRetry()
                .intercept(throttles.at(address))
                .build());
        if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
            // The caller has already paused; the back-off of the channel itself grows to two minutes.
            channel.resetConnectBackoff();
        }
        return channel;
    }

    boolean closed() {
        return closed;
    }

    Throttles throttles() {
        return throttles;
    }

    /** Closes every connection; calls in flight fail. */
    @Override
    public synchronized void close() {
        closed = true;
        channels.values().forEach(ManagedChannel::shutdownNow);
        channels.clear();
        if (reloader != null) {
            reloader.shutdownNow();
        }
    }
}
