package io.paceline.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.ManagedChannel;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsServerCredentials;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.paceline.v1.DescribeClusterRequest;
import io.paceline.v1.MetadataServiceGrpc;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.FileTime;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.KeyStore;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class TlsFilesTest {
    @Test
    void theEnvironmentNamesTheFiles() {
        assertNull(TlsFiles.fromEnvironment(Map.of()));
        for (String alone : List.of("PACELINE_SSL_CERTIFICATE_FILE", "PACELINE_SSL_KEY_FILE")) {
            assertThrows(IllegalArgumentException.class, () -> TlsFiles.fromEnvironment(Map.of(alone, "file")));
        }
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
    void renewedCertificatesOfTheAuthoritiesAreRead(@TempDir Path directory) throws Exception {
        Path ca = directory.resolve("ca.crt");
        certify(directory, "old");
        KeyManager[] keys = certify(directory, "new");
        Files.copy(directory.resolve("old.crt"), ca);
        Files.setLastModifiedTime(ca, FileTime.from(Instant.now().minusSeconds(60)));
        Server server = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", 0),
                TlsServerCredentials.newBuilder().keyManager(keys).build()).build().start();
        try (Connections connections = new Connections(TlsFiles.ofCa(ca), Duration.ofMillis(50))) {
            String address = "127.0.0.1:" + server.getPort();
            assertEquals(Status.Code.UNAVAILABLE, call(connections.to(address)));
            Files.copy(directory.resolve("new.crt"), ca, StandardCopyOption.REPLACE_EXISTING);
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(40);
            // The server has no services.
            while (call(connections.to(address)) != Status.Code.UNIMPLEMENTED) {
                assertTrue(System.nanoTime() < end, "the renewed file was not read");
                Thread.sleep(50);
            }
        } finally {
            server.shutdownNow();
        }
    }

    private static Status.Code call(ManagedChannel channel) {
        StatusRuntimeException failure = assertThrows(StatusRuntimeException.class, () -> MetadataServiceGrpc.newBlockingStub(channel)
                .withDeadlineAfter(20, TimeUnit.SECONDS).describeCluster(DescribeClusterRequest.getDefaultInstance()));
        return failure.getStatus().getCode();
    }

    /** Writes NAME.crt, signed by itself, for the local address, and returns its key. */
    private static KeyManager[] certify(Path directory, String name) throws Exception {
        String store = directory.resolve(name + ".p12").toString();
        run("-genkeypair", "-alias", name, "-keyalg", "EC", "-dname", "CN=" + name, "-ext", "san=ip:127.0.0.1",
                "-storetype", "PKCS12", "-keystore", store, "-storepass", "secret");
        run("-exportcert", "-rfc", "-alias", name, "-keystore", store, "-storepass", "secret",
                "-file", directory.resolve(name + ".crt").toString());
        KeyStore keys = KeyStore.getInstance(Path.of(store).toFile(), "secret".toCharArray());
        KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        factory.init(keys, "secret".toCharArray());
        return factory.getKeyManagers();
    }

    private static void run(String... arguments) throws Exception {
        List<String> command = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "keytool").toString()));
        command.addAll(List.of(arguments));
        Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(0, process.waitFor(), output);
    }

    @Test
    void aKeyThatOtherUsersCanReadIsRefused(@TempDir Path directory) throws Exception {
        certify(directory, "alice");
        Path certificate = directory.resolve("alice.crt");
        Path key = Files.writeString(directory.resolve("alice.key"), "-----BEGIN PRIVATE KEY-----");
        Files.setPosixFilePermissions(key, PosixFilePermissions.fromString("rw-r--r--"));
        ClientConfig config = ClientConfig.of("127.0.0.1:1").withTls(new TlsFiles(certificate, certificate, key));
        var refused = assertThrows(IllegalArgumentException.class, () -> new PacelineClient(config).close());
        assertTrue(refused.getMessage().contains("chmod 600"), refused.getMessage());
    }

    @Test
    void aMissingFileIsRefusedWhenTheClientIsMade() {
        ClientConfig config = ClientConfig.of("127.0.0.1:1").withTls(TlsFiles.ofCa(Path.of("no-such-file.crt")));
        assertThrows(IllegalArgumentException.class, () -> new PacelineClient(config).close());
    }
}
