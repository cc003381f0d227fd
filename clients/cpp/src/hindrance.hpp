// The failed reads of a partition, and when they become an error of poll. Without I/O, so that it can be tested alone.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "context.hpp"
#include "failure.hpp"

namespace paceline::detail {

/// How long the reads of a partition may fail before a poll throws.
struct Patience {
  /// Limit for a partition that brokers have not known since it was assigned; with nullopt `unread` applies.
  std::optional<milliseconds> missing = missing_topic_patience;
  milliseconds unread{60'000};
};

/// The failures of one partition since its last successful read. All of them are retriable.
struct Hindrance {
  /// Whether a broker has known the partition since it was assigned.
  bool is_found = false;
  /// Time of the first answer that the partition does not exist.
  std::optional<TimePoint> missing_since{};
  std::optional<TimePoint> unread_since{};
  std::optional<Failure> last{};
  /// The last failure that is not a time-out; the last time-out if there was no other failure.
  std::optional<Failure> cause{};

  void note(const Failure& failure, TimePoint now) {
    last = failure;
    if (!cause || failure.code != v1::ERROR_CODE_REQUEST_TIMED_OUT) cause = failure;
    if (!unread_since) unread_since = now;
    if (failure.code == v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION && !missing_since) missing_since = now;
    is_found = is_found || failure.code == v1::ERROR_CODE_LEADER_NOT_AVAILABLE;
  }

  /// Returns the failure for poll to throw if the failures have lasted too long.
  std::optional<Failure> lasting(const Patience& patience, TimePoint now) const {
    if (patience.missing && !is_found && missing_since && now - *missing_since >= *patience.missing &&
        last->code == v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION)
      return last;
    if (!unread_since || now - *unread_since < patience.unread) return std::nullopt;
    return make_failure("", v1::ERROR_CODE_REQUEST_TIMED_OUT,
                        "the partition could not be read for " + std::to_string(patience.unread.count()) +
                            " ms: " + code_name(cause->code) + ": " + cause->message);
  }

  /// Forgets the failures after a successful read, or after poll has thrown one: both limits start again.
  void end() {
    missing_since.reset();
    unread_since.reset();
    last.reset();
    cause.reset();
  }
};

}  // namespace paceline::detail
