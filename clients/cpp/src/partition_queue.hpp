// The queued records and the current batch of one partition. Without I/O, so that it can be tested alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <future>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "context.hpp"
#include "paceline/producer.hpp"
#include "paceline/v1/record.pb.h"

namespace paceline::detail {

/// A record without an outcome.
struct PendingRecord {
  v1::Record record;
  std::size_t size = 0;
  TimePoint queued;
  TimePoint deadline;
  std::promise<RecordPlace> promise;
};

/// Records that are sent together. Every attempt has the same sequence number, by which the broker recognises a repetition.
struct Batch {
  v1::RecordList list;
  std::vector<std::promise<RecordPlace>> promises;
  TimePoint deadline;
  /// Whether an attempt had an unknown outcome, so that the records may be in the log.
  bool is_unknown = false;
  bool followed_hint = false;
  /// Until then, metadata with another topic id may be outdated; nullopt until such metadata arrives.
  std::optional<TimePoint> doubt_until;
  /// Whether an attempt has failed; PartitionQueue::last has the failure.
  bool has_failed = false;
  Backoff backoff;
};

/// Returns the sequence number that follows `count` records; 0 follows the largest.
inline std::int32_t sequence_after(std::int32_t sequence, std::size_t count) {
  constexpr std::int64_t numbers = std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;
  return static_cast<std::int32_t>((sequence + static_cast<std::int64_t>(count)) % numbers);
}

class PartitionQueue {
public:
  enum class State {
    /// No batch is taken.
    idle,
    /// The next attempt to send the batch begins at `due`.
    waiting,
    /// The lookup thread asks for the leader.
    finding_leader,
    /// An InitProducerId call is in flight.
    asking_id,
    /// A Produce call is in flight.
    sending
  };

  PartitionQueue(std::string topic_, std::int32_t partition_) : topic(std::move(topic_)), partition(partition_) {}

  void put(PendingRecord record) {
    bytes_ += record.size;
    ++accepted_;
    records_.push_back(std::move(record));
  }
  bool empty() const { return records_.empty(); }

  /// Returns when a batch can be taken; nullopt without records.
  std::optional<TimePoint> ready_at(milliseconds linger, std::size_t batch_bytes) const {
    if (records_.empty()) return std::nullopt;
    const bool is_flushing = completed_ < flush_mark_;
    if (is_flushing || bytes_ >= batch_bytes) return records_.front().queued;
    return records_.front().queued + linger;
  }

  /// Moves records of up to `batch_bytes`, at least one, into a new batch.
  void take(std::size_t batch_bytes, TimePoint now) {
    batch.emplace();
    batch->deadline = records_.front().deadline;
    std::size_t size = 0;
    const auto limit = std::min(batch_bytes, limit_);
    while (!records_.empty() && (size == 0 || size + records_.front().size <= limit)) {
      auto& next = records_.front();
      size += next.size;
      *batch->list.add_records() = std::move(next.record);
      batch->promises.push_back(std::move(next.promise));
      records_.pop_front();
    }
    bytes_ -= size;
    state = State::waiting;
    due = now;
  }

  /// Moves the second half of a batch that is too large back to the queue, and limits later batches to the size of the first
  /// half. Returns false, and changes nothing, if the batch has one record.
  bool halve() {
    if (batch->promises.size() < 2) return false;
    auto& list = *batch->list.mutable_records();
    for (const auto left = (batch->promises.size() + 1) / 2; batch->promises.size() > left;) {
      PendingRecord last;
      last.record = std::move(*list.rbegin());
      list.RemoveLast();
      last.size = last.record.ByteSizeLong();
      last.queued = batch->deadline - 2 * longest_timeout;  // It does not wait for the linger time again.
      last.deadline = batch->deadline;
      last.promise = std::move(batch->promises.back());
      batch->promises.pop_back();
      bytes_ += last.size;
      records_.push_front(std::move(last));
    }
    limit_ = std::max<std::size_t>(batch->list.ByteSizeLong(), 1);
    return true;
  }

  /// Removes the batch. The caller fulfils its promises and then passes their number to `complete`.
  Batch finish() {
    auto done = std::move(*batch);
    batch.reset();
    state = State::idle;
    return done;
  }
  void complete(std::size_t count) { completed_ += count; }

  /// Makes the next batch ask for a new producer id.
  void forget_id() { producer_id = -1; }

  /// Makes the queued records ready without `linger`. Returns a mark for `reached`, which is true when they have an outcome.
  std::uint64_t mark_flush() { return flush_mark_ = accepted_; }
  bool reached(std::uint64_t mark) const { return completed_ >= mark; }

  const std::string topic;
  const std::int32_t partition;
  State state = State::idle;
  TimePoint due{};
  std::optional<Batch> batch;
  /// The last failed attempt since the last success.
  std::optional<Failure> last;
  /// Time of the first answer that the partition does not exist, since the last answer that it exists.
  std::optional<TimePoint> missing_since;

  /// Id of the topic to which producer id and sequence belong.
  std::string topic_id;
  std::int64_t producer_id = -1;
  std::int32_t producer_epoch = 0;
  std::int32_t next_sequence = 0;

private:
  std::deque<PendingRecord> records_;
  std::size_t bytes_ = 0;
  std::size_t limit_ = std::numeric_limits<std::size_t>::max();
  std::uint64_t accepted_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t flush_mark_ = 0;
};

}  // namespace paceline::detail
