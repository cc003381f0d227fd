#include "paceline/errors.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>

#include "failure.hpp"

namespace paceline {

namespace {

/// Marks the google.rpc.ErrorInfo details that Paceline's servers write.
constexpr std::string_view error_domain = "paceline";
constexpr std::string_view code_prefix = "ERROR_CODE_";

bool contains(std::string text, std::string_view part) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text.find(part) != std::string::npos;
}

/// Returns advice for a connection that probably failed because of a TLS setting; empty for any other failure.
std::string tls_advice(const std::string& message) {
  const auto says = [&](std::string_view part) { return contains(message, part); };
  if (!says("failed to connect")) return {};
  if (says("certificate verify failed") || says("certificate_verify_failed"))
    return " (PACELINE_SSL_CA_FILE or TlsFiles::ca_file does not name the authority of the server's certificate, or the"
           " certificate has expired or is for another host name)";
  if (says("wrong version number") || says("wrong_version_number"))
    return " (the server does not use TLS on this port: unset PACELINE_SSL_CA_FILE or ClientConfig::tls, or use another port)";
  // Under TLS 1.3 a client learns only after the handshake that its certificate was refused.
  if (says("socket closed") || says("endpoint read failed"))
    return " (an SSL listener ends connections without TLS, and those whose certificate is missing, expired or of another"
           " authority: check PACELINE_SSL_CA_FILE, PACELINE_SSL_CERTIFICATE_FILE and PACELINE_SSL_KEY_FILE, or ClientConfig::tls)";
  return {};
}

/// Returns the failure of a call that no server of Paceline answered. Its outcome is unknown unless the request was not read.
detail::Failure without_answer(std::string operation, const grpc::Status& status) {
  auto code = v1::ERROR_CODE_UNKNOWN_SERVER_ERROR;
  bool retriable = false;
  switch (status.error_code()) {
    case grpc::DEADLINE_EXCEEDED:
      code = v1::ERROR_CODE_REQUEST_TIMED_OUT;
      retriable = true;
      break;
    case grpc::RESOURCE_EXHAUSTED:
      // A retry of a message over the size limit would fail again.
      retriable = !contains(status.error_message(), "larger than max");
      code = retriable ? v1::ERROR_CODE_BROKER_NOT_AVAILABLE : v1::ERROR_CODE_MESSAGE_TOO_LARGE;
      break;
    case grpc::UNAVAILABLE:
    case grpc::CANCELLED:
    case grpc::INTERNAL:
    case grpc::UNKNOWN:
      // gRPC itself ends calls with any of these when a connection breaks.
      code = v1::ERROR_CODE_BROKER_NOT_AVAILABLE;
      retriable = true;
      break;
    default:
      break;
  }
  auto failure = detail::make_failure(std::move(operation), code, status.error_message() + tls_advice(status.error_message()));
  failure.retriable = failure.refresh = retriable;
  // Without a connection no request was sent, and a server does not read a request over its limit.
  failure.definite =
      (status.error_code() == grpc::UNAVAILABLE && contains(status.error_message(), "failed to connect")) ||
      (code == v1::ERROR_CODE_MESSAGE_TOO_LARGE && contains(status.error_message(), "server: received message larger than max"));
  return failure;
}

}  // namespace

std::string code_name(ErrorCode code) {
  const auto& name = v1::ErrorCode_Name(code);
  return name.empty() ? std::to_string(static_cast<int>(code)) : name.substr(code_prefix.size());
}

Error::Error(detail::Failure failure)
    : std::runtime_error(failure.operation + ": " + code_name(failure.code) + ": " + failure.message),
      failure_(std::make_shared<const detail::Failure>(std::move(failure))) {}

ErrorCode Error::code() const noexcept { return failure_->code; }
const std::string& Error::operation() const noexcept { return failure_->operation; }
bool Error::retriable() const noexcept { return failure_->retriable; }
bool Error::definite() const noexcept { return failure_->definite; }
std::chrono::milliseconds Error::retry_after() const noexcept { return failure_->retry_after; }

CommitFailedError::CommitFailedError(std::string operation, const std::string& cause, bool definite)
    : Error([&] {
        auto failure = detail::make_failure(std::move(operation), v1::ERROR_CODE_ILLEGAL_GENERATION,
                                            "the group has rebalanced without this member (" + cause +
                                                "); poll more often, take fewer records per poll or raise max_poll_interval");
        failure.definite = definite;
        return failure;
      }()) {}

TruncatedError::TruncatedError(std::string topic_, std::int32_t partition_, std::int64_t position_,
                               std::int64_t divergent_offset_)
    : std::runtime_error(topic_ + "/" + std::to_string(partition_) + " was truncated: read up to offset " +
                         std::to_string(position_) + ", the log diverges at " + std::to_string(divergent_offset_)),
      topic(std::move(topic_)),
      partition(partition_),
      position(position_),
      divergent_offset(divergent_offset_) {}

namespace detail {

CodeOptions code_options(int code) {
  const auto* value = v1::ErrorCode_descriptor()->FindValueByNumber(code);
  if (value == nullptr) return {};
  const auto& options = value->options();
  return {options.GetExtension(v1::retriable), options.GetExtension(v1::definite),
          options.GetExtension(v1::refresh_metadata)};
}

Failure make_failure(std::string operation, ErrorCode code, std::string message) {
  const auto options = code_options(code);
  Failure failure;
  failure.code = code;
  failure.operation = std::move(operation);
  failure.message = std::move(message);
  // After a refresh of the metadata the call goes to another broker, or has another epoch, and may succeed.
  failure.retriable = options.retriable || options.refresh;
  failure.definite = options.definite;
  failure.refresh = options.refresh;
  return failure;
}

Failure partition_failure(std::string operation, const v1::PartitionError& detail) {
  auto failure = make_failure(std::move(operation), detail.code(), detail.message());
  failure.retry_after = std::chrono::milliseconds(detail.retry_after_ms());
  if (detail.has_current_leader()) failure.leader = detail.current_leader();
  return failure;
}

Failure topic_failure(std::string operation, const v1::TopicError& detail) {
  return make_failure(std::move(operation), detail.code(), detail.message());
}

Failure call_failure(std::string operation, const grpc::Status& status) {
  google::rpc::Status details;
  details.ParseFromString(status.error_details());
  std::optional<Failure> failure;
  for (const auto& detail : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&info) && info.domain() == error_domain) {
      auto code = v1::ERROR_CODE_UNSPECIFIED;
      v1::ErrorCode_Parse(std::string(code_prefix) + info.reason(), &code);
      failure = make_failure(operation, code, status.error_message());
      if (code == v1::ERROR_CODE_UNSPECIFIED) failure->message = info.reason() + ": " + failure->message;
      if (const auto address = info.metadata().find("address"); address != info.metadata().end())
        failure->controller = address->second;
      if (const auto member_id = info.metadata().find("member_id"); member_id != info.metadata().end())
        failure->member_id = member_id->second;
    } else if (failure && detail.UnpackTo(&retry)) {
      const auto& delay = retry.retry_delay();
      failure->retry_after = std::chrono::milliseconds(delay.seconds() * 1'000 + delay.nanos() / 1'000'000);
    }
  }
  return failure ? *failure : without_answer(std::move(operation), status);
}

bool is_unanswered(const Failure& failure) {
  return failure.code == v1::ERROR_CODE_BROKER_NOT_AVAILABLE || failure.code == v1::ERROR_CODE_REQUEST_TIMED_OUT;
}

std::string join_address(const std::string& host, int port) {
  if (host.empty() || port == 0) return {};
  const bool is_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace detail

}  // namespace paceline
