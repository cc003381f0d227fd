#pragma once

#include <memory>
#include <optional>

#include <grpcpp/security/credentials.h>

#include "paceline/options.hpp"

namespace paceline::detail {

/// Returns TLS with the files, plaintext without. Throws std::invalid_argument for files that cannot be used.
std::shared_ptr<grpc::ChannelCredentials> make_credentials(const std::optional<TlsFiles>& tls);

}  // namespace paceline::detail
