// The background work of Producer: the sender thread sends batches, the lookup thread finds leaders.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cluster.hpp"
#include "paceline/producer.hpp"
#include "partition_queue.hpp"

namespace paceline::detail {

class Sender {
public:
  Sender(std::shared_ptr<Cluster> cluster, ProducerConfig config);
  ~Sender();

  std::future<RecordPlace> send(Record record, const CallOptions& options);
  bool flush(milliseconds timeout);
  bool close(milliseconds timeout);

private:
  using State = PartitionQueue::State;
  struct ProduceCall;
  struct Delivered {
    Batch batch;
    PartitionQueue* queue = nullptr;
    std::int64_t base_offset = 0;
    std::optional<Failure> failure;
  };

  std::int32_t choose_partition(const Record& record, const Context& context);
  PartitionQueue& queue_of(const std::string& topic, std::int32_t partition);

  void run_sender(const std::stop_token& stop);
  void run_lookups(const std::stop_token& stop);

  // The caller of these functions holds the mutex.
  std::optional<TimePoint> step_all(TimePoint now);  // Returns when a batch is due next; nullopt if none waits.
  void step(PartitionQueue& queue, TimePoint now, std::map<std::string, std::vector<PartitionQueue*>>& ready);
  void ask_for_id(PartitionQueue& queue, const Route& route);
  void produce(const std::string& address, const std::vector<PartitionQueue*>& queues);
  void start(std::unique_ptr<ProduceCall> call);
  void on_answer(ProduceCall& call, const grpc::Status& status);
  void on_lookup(const std::string& topic, const std::optional<Failure>& failure);
  void on_success(PartitionQueue& queue, std::int64_t base_offset);
  void on_failure(PartitionQueue& queue, Failure failure, bool was_sent);
  bool is_missing(PartitionQueue& queue, const Failure& failure, TimePoint now) const;
  void deliver(PartitionQueue& queue, std::int64_t base_offset, std::optional<Failure> failure);
  void fail_everything();
  /// Releases the mutex and fulfils the promises of finished batches.
  void fulfil(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<Cluster> cluster_;
  const ProducerConfig config_;

  std::mutex mutex_;
  std::condition_variable_any work_;     // for the sender thread
  std::condition_variable_any lookup_;   // for the lookup thread
  std::condition_variable_any outcome_;  // for send, flush and close
  std::map<std::pair<std::string, std::int32_t>, std::unique_ptr<PartitionQueue>> queues_;
  std::map<std::string, std::int32_t> sticky_;
  std::set<std::string> lookups_;
  std::map<ProduceCall*, std::unique_ptr<ProduceCall>> calls_;
  /// Calls that have ended. A call holds its channel, and gRPC 1.51 crashes when one of its callback threads releases the
  /// last reference to a channel, so this list is only emptied on threads of this library.
  std::vector<std::unique_ptr<ProduceCall>> ended_calls_;
  std::vector<Delivered> delivered_;
  std::size_t pending_ = 0;
  bool has_work_ = false;
  bool is_closed_ = false;
  /// Held while the two threads are joined, so that concurrent calls of close do not join a thread twice.
  std::mutex ending_;

  std::jthread lookup_thread_;
  std::jthread sender_thread_;
};

}  // namespace paceline::detail
