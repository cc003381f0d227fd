/// Errors of the client. Every failure of a call is a paceline::Error, except where a comment says otherwise.
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

/// A failure with the code that a server sent, or the nearest code for a call without an answer: REQUEST_TIMED_OUT or
/// BROKER_NOT_AVAILABLE.
class Error : public std::runtime_error {
public:
  explicit Error(detail::Failure failure);

  ErrorCode code() const noexcept;
  /// The call that failed, for example "creating topic rides".
  const std::string& operation() const noexcept;
  /// Whether the same call may succeed later.
  bool retriable() const noexcept;
  /// Whether the operation surely did not happen. False: the outcome is unknown.
  bool definite() const noexcept;
  /// The least pause before a repetition that the server asked for; 0 when it named none.
  std::chrono::milliseconds retry_after() const noexcept;

  const detail::Failure& failure() const noexcept { return *failure_; }

private:
  // Shared, so that copies of the exception do not throw.
  std::shared_ptr<const detail::Failure> failure_;
};

/// Offsets were not committed because the group has rebalanced without this member; other members may own the partitions.
/// Poll to join again. The code is ILLEGAL_GENERATION. It is not definite when an earlier attempt of the commit may have been
/// carried out.
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

/// The caller requested a stop. The outcome of the cancelled call is unknown.
class CancelledError : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

}  // namespace paceline
