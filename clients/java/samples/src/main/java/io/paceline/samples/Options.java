package io.paceline.samples;

import io.paceline.client.ClientConfig;
import io.paceline.client.PacelineClient;
import io.paceline.client.TlsFiles;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/** Options of the samples as {@code --name value}. */
final class Options {
    private final Map<String, String> given = new HashMap<>();

    Options(String[] arguments) {
        for (int i = 0; i < arguments.length; i += 2) {
            if (!arguments[i].startsWith("--") || i + 1 == arguments.length) {
                throw new IllegalArgumentException("options are --name value, not " + arguments[i]);
            }
            given.put(arguments[i].substring(2), arguments[i + 1]);
        }
    }

    String text(String name, String byDefault) {
        return given.getOrDefault(name, byDefault);
    }

    int number(String name, int byDefault) {
        return given.containsKey(name) ? Integer.parseInt(given.get(name)) : byDefault;
    }

    /** Makes a client of --bootstrap (else PACELINE_BOOTSTRAP_SERVERS), with TLS when --ca (and --cert, --key) are given. */
    PacelineClient client() {
        String addresses = System.getenv().getOrDefault("PACELINE_BOOTSTRAP_SERVERS", "127.0.0.1:9102");
        ClientConfig config = ClientConfig.of(text("bootstrap", addresses).split(","));
        if (given.containsKey("ca")) {
            config = config.withTls(new TlsFiles(Path.of(given.get("ca")), path("cert"), path("key")));
        }
        return new PacelineClient(config);
    }

    private Path path(String name) {
        return given.containsKey(name) ? Path.of(given.get(name)) : null;
    }
}
