// Failures as values: Error carries one, and the producer keeps one per batch without throwing.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <grpcpp/support/status.h>

#include "paceline/errors.hpp"

namespace paceline::detail {

struct Failure {
  ErrorCode code = v1::ERROR_CODE_UNSPECIFIED;
  std::string operation;
  std::string message;
  bool retriable = false;
  bool definite = false;
  /// The request went to the wrong process: follow the hint or ask for metadata.
  bool refresh = false;
  std::chrono::milliseconds retry_after{0};
  std::optional<v1::LeaderHint> leader{};
  /// Address of the active controller, with NOT_CONTROLLER.
  std::string controller{};
  /// Member id to join with, with MEMBER_ID_REQUIRED.
  std::string member_id{};
};

/// The options that errors.proto gives a code; all false for a code that this library does not know.
struct CodeOptions {
  bool retriable = false;
  bool definite = false;
  bool refresh = false;
};
CodeOptions code_options(int code);

Failure make_failure(std::string operation, ErrorCode code, std::string message);
Failure partition_failure(std::string operation, const v1::PartitionError& detail);
Failure topic_failure(std::string operation, const v1::TopicError& detail);
/// Returns the failure of a whole call.
Failure call_failure(std::string operation, const grpc::Status& status);

/// Returns whether no server of Paceline has answered.
bool is_unanswered(const Failure& failure);

/// Returns host:port, with brackets around an IPv6 address; empty when either is missing.
std::string join_address(const std::string& host, int port);

}  // namespace paceline::detail
