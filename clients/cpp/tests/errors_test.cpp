#include <doctest/doctest.h>

#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>

#include "context.hpp"
#include "failure.hpp"

using namespace paceline;
using namespace paceline::detail;
using std::chrono::milliseconds;

namespace {

grpc::Status status_with(grpc::StatusCode code, const std::string& reason, const std::string& domain = "paceline",
                         int retry_after_ms = 0) {
  google::rpc::ErrorInfo info;
  info.set_domain(domain);
  info.set_reason(reason);
  (*info.mutable_metadata())["address"] = "127.0.0.1:9082";
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  if (retry_after_ms > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_nanos(retry_after_ms * 1'000'000);
    details.add_details()->PackFrom(retry);
  }
  return {code, "said", details.SerializeAsString()};
}

}  // namespace

TEST_CASE("the options of a code come from errors.proto") {
  struct Row {
    ErrorCode code;
    bool retriable, definite, refresh;
  };
  for (const auto& [code, retriable, definite, refresh] :
       {Row{v1::ERROR_CODE_NOT_LEADER_OR_FOLLOWER, true, false, true}, Row{v1::ERROR_CODE_NOT_ENOUGH_REPLICAS, true, true, false},
        Row{v1::ERROR_CODE_REQUEST_TIMED_OUT, true, false, false}, Row{v1::ERROR_CODE_MESSAGE_TOO_LARGE, false, true, false},
        Row{v1::ERROR_CODE_UNKNOWN_SERVER_ERROR, false, false, false}, Row{v1::ERROR_CODE_NOT_CONTROLLER, true, true, true},
        Row{v1::ERROR_CODE_INCONSISTENT_TOPIC_ID, true, true, true}}) {
    CAPTURE(code_name(code));
    const auto failure = make_failure("testing", code, "");
    CHECK(failure.retriable == retriable);
    CHECK(failure.definite == definite);
    CHECK(failure.refresh == refresh);
  }
}

TEST_CASE("a code that errors.proto does not have is neither retriable nor definite") {
  v1::PartitionError detail;
  detail.set_code(static_cast<ErrorCode>(4711));
  const auto failure = partition_failure("testing", detail);
  CHECK_FALSE(failure.retriable);
  CHECK_FALSE(failure.definite);
  CHECK(code_name(failure.code) == "4711");
}

TEST_CASE("a status with ErrorInfo has its code, the controller's address and the pause") {
  const auto failure = call_failure("testing", status_with(grpc::FAILED_PRECONDITION, "NOT_CONTROLLER", "paceline", 250));
  CHECK(failure.code == v1::ERROR_CODE_NOT_CONTROLLER);
  CHECK(failure.controller == "127.0.0.1:9082");
  CHECK(failure.retry_after == milliseconds(250));
}

TEST_CASE("an unknown reason and ErrorInfo of another domain are not mistaken for a known code") {
  CHECK_FALSE(call_failure("testing", status_with(grpc::ABORTED, "NEW_CODE")).retriable);
  CHECK(call_failure("testing", status_with(grpc::UNAVAILABLE, "NOT_CONTROLLER", "example.com")).code ==
        v1::ERROR_CODE_BROKER_NOT_AVAILABLE);
}

TEST_CASE("a call without an answer is definite only when no connection was made") {
  struct Row {
    grpc::StatusCode status;
    const char* said;
    ErrorCode code;
    bool retriable, definite;
  };
  for (const auto& [status, said, code, retriable, definite] :
       {Row{grpc::UNAVAILABLE, "failed to connect to all addresses", v1::ERROR_CODE_BROKER_NOT_AVAILABLE, true, true},
        Row{grpc::UNAVAILABLE, "Socket closed", v1::ERROR_CODE_BROKER_NOT_AVAILABLE, true, false},
        Row{grpc::DEADLINE_EXCEEDED, "Deadline Exceeded", v1::ERROR_CODE_REQUEST_TIMED_OUT, true, false},
        Row{grpc::RESOURCE_EXHAUSTED, "Received message larger than max", v1::ERROR_CODE_MESSAGE_TOO_LARGE, false, false},
        // With this text the server refused the request unread; the other texts concern the size of the response.
        Row{grpc::RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (17 vs. 16)", v1::ERROR_CODE_MESSAGE_TOO_LARGE, false, true},
        Row{grpc::RESOURCE_EXHAUSTED, "SERVER: Sent message larger than max (17 vs. 16)", v1::ERROR_CODE_MESSAGE_TOO_LARGE, false, false},
        Row{grpc::UNIMPLEMENTED, "no such method", v1::ERROR_CODE_UNKNOWN_SERVER_ERROR, false, false}}) {
    CAPTURE(said);
    const auto failure = call_failure("testing", {status, said});
    CHECK(failure.code == code);
    CHECK(failure.retriable == retriable);
    CHECK(failure.definite == definite);
  }
}

TEST_CASE("a connection that fails because of TLS has advice in its message") {
  const auto message = [](const std::string& said) { return call_failure("testing", {grpc::UNAVAILABLE, said}).message; };
  const std::string begin = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9443: ";
  for (const auto& [said, advice] : {std::pair("Ssl handshake failed: SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed",
                                               "does not name the authority"),
                                     {"Ssl handshake failed: error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED",
                                      "does not name the authority"},
                                     {"Ssl handshake failed: error:0A00010B:SSL routines::wrong version number", "does not use TLS"},
                                     {"Socket closed", "PACELINE_SSL_CERTIFICATE_FILE"},
                                     {"Endpoint read failed", "PACELINE_SSL_CERTIFICATE_FILE"}}) {
    CAPTURE(said);
    CHECK(message(begin + said).find(begin + said) == 0);
    CHECK(message(begin + said).find(advice) != std::string::npos);
  }
  CHECK(message(begin + "Connection refused") == begin + "Connection refused");
  CHECK(message("Socket closed") == "Socket closed");
}

TEST_CASE("pauses double up to a second, each shortened at random by up to a fifth") {
  Backoff backoff;
  for (const auto longest : {100, 200, 400, 800, 1'000, 1'000}) {
    const auto pause = backoff.next();
    CHECK(pause <= milliseconds(longest));
    CHECK(pause > milliseconds(longest * 4 / 5 - 1));
  }
}

TEST_CASE("a retry ends with the last failure when its time is over") {
  int attempts = 0;
  const Context context(CallOptions{.timeout = milliseconds(2'000)});
  try {
    retry(context, milliseconds(1'000), [&](const Context&) -> int {
      ++attempts;
      throw Error(make_failure("testing", v1::ERROR_CODE_THROTTLED, "busy"));
    });
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == v1::ERROR_CODE_THROTTLED);
    CHECK(attempts >= 2);
  }
}

TEST_CASE("a stop ends the pause between attempts") {
  std::stop_source source;
  const Context context(CallOptions{.timeout = std::chrono::hours(1), .stop = source.get_token()});
  CHECK_THROWS_AS(retry(context, milliseconds(1'000),
                        [&](const Context&) -> int {
                          source.request_stop();
                          auto failure = make_failure("testing", v1::ERROR_CODE_THROTTLED, "busy");
                          failure.retry_after = std::chrono::hours(1);
                          throw Error(failure);
                        }),
                  CancelledError);
}

TEST_CASE("an IPv6 address gets brackets") {
  CHECK(join_address("broker-1", 9092) == "broker-1:9092");
  CHECK(join_address("::1", 9092) == "[::1]:9092");
  CHECK(join_address("", 9092).empty());
}
