// Connects to the gateways that the environment names; README.md lists the variables.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "paceline/v1/gateway_service.grpc.pb.h"

namespace gateway {

inline std::string environment(const char* name, const std::string& otherwise = "") {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

inline std::string contents_of(const std::string& path) {
  std::ostringstream text;
  if (!path.empty()) text << std::ifstream(path).rdbuf();
  return text.str();
}

inline std::shared_ptr<grpc::ChannelCredentials> credentials() {
  const std::string ca = environment("PACELINE_SSL_CA_FILE");
  if (ca.empty()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({contents_of(ca), contents_of(environment("PACELINE_SSL_KEY_FILE")),
                               contents_of(environment("PACELINE_SSL_CERTIFICATE_FILE"))});
}

/// Stubs of all gateways.
class Gateways {
 public:
  using Stub = paceline::v1::GatewayService::Stub;

  Gateways() {
    std::istringstream addresses(environment("PACELINE_GATEWAYS", "localhost:9095"));
    for (std::string address; std::getline(addresses, address, ',');)
      stubs_.push_back(paceline::v1::GatewayService::NewStub(grpc::CreateChannel(address, credentials())));
  }

  /// Returns the stub in use, at first that of the first gateway.
  Stub& current() { return *stubs_[index_ % stubs_.size()]; }

  /// Returns the stub of the next gateway; the first follows the last.
  Stub& next() {
    ++index_;
    return current();
  }

 private:
  std::vector<std::unique_ptr<Stub>> stubs_;
  std::size_t index_ = 0;
};

/// Sleeps for a second after an error that may be over at the next attempt. Ends the program after any other error, and
/// after too many failures in a row.
inline void pause_after(const grpc::Status& status, int failures) {
  constexpr int kMostFailures = 60;
  const auto code = status.error_code();
  const bool passes = code == grpc::UNAVAILABLE || code == grpc::ABORTED || code == grpc::DEADLINE_EXCEEDED;
  if (!passes || failures >= kMostFailures) {
    std::cerr << status.error_message() << '\n';
    std::exit(EXIT_FAILURE);
  }
  std::cerr << status.error_message() << "; trying the next gateway\n";
  std::this_thread::sleep_for(std::chrono::seconds(1));
}

}  // namespace gateway
