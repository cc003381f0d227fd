#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "paceline/options.hpp"
#include "paceline/record.hpp"

namespace paceline {

namespace detail {
class Cluster;
class Fetcher;
}  // namespace detail

/// A start position that the broker turns into an offset.
class OffsetSpec {
public:
  /// The first offset still in the log.
  static OffsetSpec earliest() { return OffsetSpec(Kind::earliest, {}); }
  /// The end of the committed records, exclusive.
  static OffsetSpec latest() { return OffsetSpec(Kind::latest, {}); }
  /// The first record at or after a time.
  static OffsetSpec at(Timestamp time) { return OffsetSpec(Kind::timestamp, time); }

  enum class Kind { earliest, latest, timestamp };
  Kind kind() const noexcept { return kind_; }
  Timestamp time() const noexcept { return time_; }

private:
  OffsetSpec(Kind kind, Timestamp time) : kind_(kind), time_(time) {}
  Kind kind_;
  Timestamp time_;
};

/// Where a consumer continues when its position is out of range, or its topic was deleted and re-created.
enum class ResetPolicy {
  /// Continue at the first offset still in the log.
  earliest,
  /// Continue at the end.
  latest,
  /// Throw Error with OFFSET_OUT_OF_RANGE from poll.
  error
};

struct ConsumerConfig {
  ResetPolicy reset = ResetPolicy::earliest;
  /// How long a broker may hold a fetch without records.
  std::chrono::milliseconds max_wait{500};
  /// Bounds the answer of one fetch; 0 is the broker's default of 1 MiB.
  std::int32_t max_bytes = 0;
};

/// Reads assigned partitions without a consumer group: the positions are kept in this object only. Not safe for
/// concurrent use; another thread can end a poll through its stop token.
class Consumer {
public:
  Consumer(std::shared_ptr<detail::Cluster> cluster, ConsumerConfig config);
  ~Consumer();
  Consumer(Consumer&&) noexcept;
  Consumer& operator=(Consumer&&) noexcept;

  /// Reads a partition from an offset. Assigning it again moves the position.
  void assign(const std::string& topic, std::int32_t partition, std::int64_t offset);
  /// Reads a partition from a start position, which the first poll looks up.
  void assign(const std::string& topic, std::int32_t partition, OffsetSpec start = OffsetSpec::earliest());
  /// Reads every partition that the topic has now. Throws Error, with UNKNOWN_TOPIC_OR_PARTITION when brokers have not known
  /// the topic for 5 seconds.
  void assign_topic(const std::string& topic, OffsetSpec start = OffsetSpec::earliest(), const CallOptions& options = {});

  /// Returns the offset of the next record that poll will return for a partition; nullopt before it is known.
  std::optional<std::int64_t> position(const std::string& topic, std::int32_t partition) const;

  /// Waits for records and returns at most max_records of them; the next poll returns the others. Returns an empty vector
  /// after the timeout.
  ///
  /// Throws TruncatedError when records that were read are no longer in the log, CancelledError when a stop was requested,
  /// std::logic_error when no partition is assigned, and Error with
  /// - UNKNOWN_TOPIC_OR_PARTITION when brokers have not known a topic or partition for 5 seconds since it was assigned,
  /// - REQUEST_TIMED_OUT when a partition could not be read for 60 seconds; the message names the cause,
  /// - OFFSET_OUT_OF_RANGE for ResetPolicy::error,
  /// - any other code that is not retriable.
  /// The partition stays assigned, and the next poll tries again.
  std::vector<ConsumedRecord> poll(std::chrono::milliseconds timeout, std::stop_token stop = {},
                                   std::size_t max_records = std::numeric_limits<std::size_t>::max());

private:
  std::unique_ptr<detail::Fetcher> fetcher_;
};

}  // namespace paceline
