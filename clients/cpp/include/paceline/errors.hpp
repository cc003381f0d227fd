/// Errors of the client. A call that fails throws paceline::Error, unless its comment names another class.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "paceline/v1/errors.pb.h"

namespace paceline {

using v1::ErrorCode;

namespace detail {
struct Failure;
}

/// Returns the name of a code without its prefix, for example "NOT_CONTROLLER".
std::string code_name(ErrorCode code);

/// A failed call. The code is that of the server's response. A call without a response has REQUEST_TIMED_OUT,
/// BROKER_NOT_AVAILABLE, MESSAGE_TOO_LARGE (gRPC refused the size) or UNKNOWN_SERVER_ERROR.
class Error : public std::runtime_error {
public:
  explicit Error(detail::Failure failure);

  ErrorCode code() const noexcept;
  /// The call that failed, for example "creating topic rides".
  const std::string& operation() const noexcept;
  /// Whether the same call may succeed later.
  bool retriable() const noexcept;
  /// Whether the operation was definitely not carried out. False: the outcome is unknown.
  bool definite() const noexcept;
  /// The server's minimum pause before a retry; 0 if it named none.
  std::chrono::milliseconds retry_after() const noexcept;

  const detail::Failure& failure() const noexcept { return *failure_; }

private:
  // A shared pointer, because copying an exception must not throw.
  std::shared_ptr<const detail::Failure> failure_;
};

/// Offsets were not committed because the group has rebalanced without this member; other members may own the partitions.
/// Poll to join again. The code is ILLEGAL_GENERATION. `definite` returns false if an earlier attempt of the same commit may
/// have been carried out.
class CommitFailedError : public Error {
public:
  CommitFailedError(std::string operation, const std::string& cause, bool definite = true);
};

/// Records that the consumer has read were removed from the log by an unclean election (KIP-320). The next poll
/// continues at divergent_offset.
class TruncatedError : public std::runtime_error {
public:
  TruncatedError(std::string topic, std::int32_t partition, std::int64_t position, std::int64_t divergent_offset);

  std::string topic;
  std::int32_t partition;
  /// The offset after the last record that was read.
  std::int64_t position;
  std::int64_t divergent_offset;
};

/// The caller requested a stop. The outcome of the call is unknown.
class CancelledError : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

}  // namespace paceline
