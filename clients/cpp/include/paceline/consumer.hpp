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

/// A place in a partition that the broker looks up.
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

/// What happens when a position is out of range, or its topic was deleted and created again.
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

/// Reads assigned partitions from positions of its own, without a group. Use it from one thread; a stop token ends a poll
/// from another.
class Consumer {
public:
  Consumer(std::shared_ptr<detail::Cluster> cluster, ConsumerConfig config);
  ~Consumer();
  Consumer(Consumer&&) noexcept;
  Consumer& operator=(Consumer&&) noexcept;

  /// Reads a partition from an offset. Assigning it again moves the position.
  void assign(const std::string& topic, std::int32_t partition, std::int64_t offset);
  /// Reads a partition from a place that the broker looks up at the first poll.
  void assign(const std::string& topic, std::int32_t partition, OffsetSpec start = OffsetSpec::earliest());
  /// Reads every partition that the topic has now. Throws Error.
  void assign_topic(const std::string& topic, OffsetSpec start = OffsetSpec::earliest(), const CallOptions& options = {});

  /// Returns the offset of the next record of a partition that poll returns; nothing while it is not known.
  std::optional<std::int64_t> position(const std::string& topic, std::int32_t partition) const;

  /// Waits until there are records or the time ends; then it returns none. Returns at most max_records and keeps the others
  /// for the next poll.
  ///
  /// Throws TruncatedError when records that were read are not in the log any more, Error with OFFSET_OUT_OF_RANGE for
  /// ResetPolicy::error and with any code that no retry can mend, CancelledError when a stop was requested, and
  /// std::logic_error without partitions.
  std::vector<ConsumedRecord> poll(std::chrono::milliseconds timeout, std::stop_token stop = {},
                                   std::size_t max_records = std::numeric_limits<std::size_t>::max());

private:
  std::unique_ptr<detail::Fetcher> fetcher_;
};

}  // namespace paceline
