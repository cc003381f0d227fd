#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>

#include "paceline/options.hpp"
#include "paceline/record.hpp"

namespace paceline {

namespace detail {
class Cluster;
class Sender;
}  // namespace detail

struct ProducerConfig {
  /// Limit of the time from send to the outcome of a record, retries included.
  std::chrono::milliseconds delivery_timeout{120'000};
  /// How long the producer waits for more records before it sends a batch that is not full.
  std::chrono::milliseconds linger{0};
  /// Largest batch, unless a single record is larger. A full batch does not wait for `linger`.
  std::size_t batch_bytes = 256 * 1024;
  /// How many records may be without an outcome; send blocks at this number.
  std::size_t max_pending = 100'000;
};

/// Partition and offset of a record in the log.
struct RecordPlace {
  std::int32_t partition = 0;
  std::int64_t offset = 0;
};

/// Sends records with acks=all, idempotent: each record once, in order per partition. Safe for concurrent use.
///
/// Every partition has one batch in flight and a producer id of its own, so an unknown outcome in one partition does not
/// affect another. The destructor calls close(config.delivery_timeout).
class Producer {
public:
  Producer(std::shared_ptr<detail::Cluster> cluster, ProducerConfig config);
  ~Producer();
  Producer(Producer&&) noexcept;
  Producer& operator=(Producer&&) noexcept;

  /// Queues a record. The future returns the record's place, or throws Error when the record was not delivered: at once when
  /// the failure is not retriable; with UNKNOWN_TOPIC_OR_PARTITION when brokers have not known its topic or partition for 5
  /// seconds and this producer has not written there before; otherwise with the last failure when `delivery_timeout` ends.
  ///
  /// Blocks while `max_pending` records have no outcome, and, for a record without a partition, while the partition count of
  /// its topic is looked up. Throws Error when the time of `options` ends first, and with UNKNOWN_TOPIC_OR_PARTITION when brokers
  /// have not known that topic for 5 seconds. Throws CancelledError when a stop was
  /// requested, std::invalid_argument for text that is not UTF-8, and std::logic_error after close.
  std::future<RecordPlace> send(Record record, const CallOptions& options = {});

  /// Sends queued records without waiting for `linger`, and waits until every earlier record has an outcome. Returns false
  /// if the timeout ends first.
  bool flush(std::chrono::milliseconds timeout = std::chrono::hours(1));

  /// Flushes, then ends the producer and fails the records that still have no outcome. Returns the result of the flush.
  bool close(std::chrono::milliseconds timeout = std::chrono::hours(1));

private:
  std::unique_ptr<detail::Sender> sender_;
};

}  // namespace paceline
