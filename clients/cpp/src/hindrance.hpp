// Why a partition cannot be read, and since when: a state without I/O, so that it can be tested alone.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "context.hpp"
#include "failure.hpp"

namespace paceline::detail {

/// How long the reads of a partition may fail before a poll throws.
struct Patience {
  /// For a partition that brokers have not known since it was assigned; nothing: as for other partitions.
  std::optional<milliseconds> missing = missing_topic_patience;
  milliseconds unread{60'000};
};

/// The failures of one partition since its last success. Each of them may pass.
struct Hindrance {
  /// Whether a broker has known the partition since it was assigned.
  bool is_found = false;
  /// Time of the first answer that the partition does not exist.
  std::optional<TimePoint> missing_since{};
  std::optional<TimePoint> unread_since{};
  std::optional<Failure> last{};
  /// The last failure that is no time-out, or a time-out without one.
  std::optional<Failure> cause{};

  void note(const Failure& failure, TimePoint now) {
    last = failure;
    if (!cause || failure.code != v1::ERROR_CODE_REQUEST_TIMED_OUT) cause = failure;
    if (!unread_since) unread_since = now;
    if (failure.code == v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION && !missing_since) missing_since = now;
    is_found = is_found || failure.code == v1::ERROR_CODE_LEADER_NOT_AVAILABLE;
  }

  /// Returns the failure that a poll throws, when the failures have lasted too long.
  std::optional<Failure> lasting(const Patience& patience, TimePoint now) const {
    if (patience.missing && !is_found && missing_since && now - *missing_since >= *patience.missing &&
        last->code == v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION)
      return last;
    if (!unread_since || now - *unread_since < patience.unread) return std::nullopt;
    return make_failure("", v1::ERROR_CODE_REQUEST_TIMED_OUT,
                        "the partition could not be read for " + std::to_string(patience.unread.count()) +
                            " ms: " + code_name(cause->code) + ": " + cause->message);
  }

  /// Takes note of a success, or of a failure that a poll throws: the time starts again.
  void end() {
    missing_since.reset();
    unread_since.reset();
    last.reset();
    cause.reset();
  }
};

}  // namespace paceline::detail
