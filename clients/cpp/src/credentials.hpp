#pragma once

#include <memory>
#include <optional>

#include <grpcpp/security/credentials.h>

#include "paceline/options.hpp"

namespace paceline::detail {

/// Returns TLS credentials with these files, and plaintext credentials for nullopt. Throws std::invalid_argument when a file
/// cannot be read or used.
std::shared_ptr<grpc::ChannelCredentials> make_credentials(const std::optional<TlsFiles>& tls);

}  // namespace paceline::detail
