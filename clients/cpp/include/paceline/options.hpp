#pragma once

#include <chrono>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace paceline {

/// PEM files of a secure cluster. The files are read when the client is made.
struct TlsFiles {
  std::string ca_file{};
  /// Certificate and key identify this client; both or neither.
  std::string certificate_file{};
  std::string key_file{};
};

/// How to reach a cluster.
struct ClientConfig {
  /// Addresses (host:port) of any brokers or controllers of the cluster.
  std::vector<std::string> bootstrap{};
  /// Bounds one request; a call with retries may have many.
  std::chrono::milliseconds request_timeout{10'000};
  std::optional<TlsFiles> tls{};

  /// Reads PACELINE_BOOTSTRAP_SERVERS (comma separated), PACELINE_SSL_CA_FILE, PACELINE_SSL_CERTIFICATE_FILE and
  /// PACELINE_SSL_KEY_FILE. Throws std::invalid_argument when the first is missing.
  static ClientConfig from_environment();
};

/// Bounds one call of the library.
struct CallOptions {
  /// Bounds the call, retries included.
  std::chrono::milliseconds timeout{30'000};
  /// Ends the call with CancelledError.
  std::stop_token stop{};
};

}  // namespace paceline
