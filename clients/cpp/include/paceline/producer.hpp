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
  /// Bounds the delivery of a record from send on, retries included.
  std::chrono::milliseconds delivery_timeout{120'000};
  /// How long a batch waits for further records; 0 sends at once what has gathered.
  std::chrono::milliseconds linger{0};
  /// Size from which a batch is sent.
  std::size_t batch_bytes = 256 * 1024;
  /// How many records may be without an outcome before send blocks.
  std::size_t max_pending = 100'000;
};

/// Where a record lies.
struct RecordPlace {
  std::int32_t partition = 0;
  std::int64_t offset = 0;
};

/// Sends records with acks=all, idempotent: in order per partition, each once. Safe for concurrent use.
///
/// Every partition has one batch in flight and a producer id of its own, so an unknown outcome in one partition disturbs
/// no other. The destructor flushes like close(config.delivery_timeout).
class Producer {
public:
  Producer(std::shared_ptr<detail::Cluster> cluster, ProducerConfig config);
  ~Producer();
  Producer(Producer&&) noexcept;
  Producer& operator=(Producer&&) noexcept;

  /// Queues a record. The future has the record's place, or throws Error when it could not be delivered.
  ///
  /// Blocks while too many records wait, and on the first use of a topic without a partition. Throws Error, CancelledError,
  /// or std::logic_error after close.
  std::future<RecordPlace> send(Record record, const CallOptions& options = {});

  /// Waits until every record sent before has its outcome, without waiting for the linger time. Returns false when the time
  /// ended first.
  bool flush(std::chrono::milliseconds timeout = std::chrono::hours(1));

  /// Flushes and ends the producer. Records without an outcome by then fail. Returns what flush returned.
  bool close(std::chrono::milliseconds timeout = std::chrono::hours(1));

private:
  std::unique_ptr<detail::Sender> sender_;
};

}  // namespace paceline
