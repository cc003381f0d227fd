package io.paceline.client;

import io.grpc.ChannelCredentials;
import io.grpc.ConnectivityState;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.TlsChannelCredentials;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.util.AdvancedTlsX509KeyManager;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** One channel per address, made when it is first needed. */
final class Connections implements AutoCloseable {
    private static final int LARGEST_MESSAGE_BYTES = 64 * 1024 * 1024;

    private final Map<String, ManagedChannel> channels = new HashMap<>();
    /** When a channel was last asked for, by address. */
    private final Map<String, Long> usedNanos = new HashMap<>();
    private final ChannelCredentials credentials;
    /** Reads renewed certificates; null without a certificate. */
    private ScheduledExecutorService reloader;
    private volatile boolean closed;

    Connections(TlsFiles tls) {
        try {
            credentials = tls == null ? InsecureChannelCredentials.create() : tlsCredentials(tls);
        } catch (IOException | GeneralSecurityException error) {
            close();
            throw new IllegalArgumentException("cannot use the PEM files " + tls + ": " + error.getMessage(), error);
        }
    }

    private ChannelCredentials tlsCredentials(TlsFiles tls) throws IOException, GeneralSecurityException {
        TlsChannelCredentials.Builder builder = TlsChannelCredentials.newBuilder().trustManager(tls.ca().toFile());
        if (tls.certificate() != null) {
            reloader = Executors.newSingleThreadScheduledExecutor(task -> daemon(task, "paceline-certificates"));
            var manager = new AdvancedTlsX509KeyManager();
            manager.updateIdentityCredentials(
                    tls.certificate().toFile(), tls.key().toFile(), 1, TimeUnit.MINUTES, reloader);
            builder.keyManager(manager);
        }
        return builder.build();
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
                .build());
        usedNanos.put(address, System.nanoTime());
        if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
            // The caller paused already; the channel's own pause grows to two minutes.
            channel.resetConnectBackoff();
        }
        return channel;
    }

    /** Ends the connections to other addresses that were not used for so long; calls in flight continue. */
    synchronized void leave(Set<String> known, Duration maxAge) {
        long now = System.nanoTime();
        channels.entrySet().removeIf(one -> {
            boolean isLeft = !known.contains(one.getKey()) && now - usedNanos.get(one.getKey()) > maxAge.toNanos();
            if (isLeft) {
                usedNanos.remove(one.getKey());
                one.getValue().shutdown();
            }
            return isLeft;
        });
    }

    boolean closed() {
        return closed;
    }

    /** Ends every connection; calls in flight fail. */
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
