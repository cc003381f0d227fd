#include "sender.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "paceline/partitioner.hpp"
#include "text.hpp"

namespace paceline::detail {

namespace {

/// Most bytes of the batches in a request; brokers refuse requests above 4 MiB (socket.request.max.bytes).
constexpr std::size_t largest_request = 3 * 1024 * 1024;

std::size_t size_of(const Record& record) {
  std::size_t size = record.key.value_or("").size() + record.value.value_or("").size() + 32;
  for (const auto& header : record.headers) size += header.key.size() + header.value.value_or("").size() + 8;
  return size;
}

v1::Record encode(Record record) {
  v1::Record encoded;
  if (record.key) encoded.set_key(std::move(*record.key));
  if (record.value) encoded.set_value(std::move(*record.value));
  for (auto& header : record.headers) {
    auto& added = *encoded.add_headers();
    added.set_key(std::move(header.key));
    if (header.value) added.set_value(std::move(*header.value));
  }
  const auto time = record.timestamp.value_or(
      std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now()));
  encoded.set_timestamp_ms(time.time_since_epoch().count());
  return encoded;
}

std::string operation_of(const PartitionQueue& queue) {
  return "producing to " + queue.topic + "/" + std::to_string(queue.partition);
}

/// Returns the failure of a batch that gets no further attempt, with the last failure of the partition in its message.
Failure given_up(const PartitionQueue& queue, std::string message) {
  if (queue.last) message += "; the last failure: " + code_name(queue.last->code) + ": " + queue.last->message;
  auto failure = make_failure(operation_of(queue), v1::ERROR_CODE_REQUEST_TIMED_OUT, std::move(message));
  failure.definite = true;
  return failure;
}

ProducerConfig checked(ProducerConfig config) {
  if (config.max_pending < 1 || config.batch_bytes < 1 || config.delivery_timeout <= milliseconds(0) ||
      config.linger < milliseconds(0))
    throw std::invalid_argument("ProducerConfig: max_pending, batch_bytes and delivery_timeout must be positive, linger not negative");
  config.delivery_timeout = std::min(config.delivery_timeout, longest_timeout);
  config.linger = std::min(config.linger, longest_timeout);
  return config;
}

}  // namespace

/// One call under way: a Produce for several partitions, or an InitProducerId for one.
struct Sender::ProduceCall {
  grpc::ClientContext context;
  std::unique_ptr<v1::LogService::Stub> stub;
  std::vector<PartitionQueue*> queues;
  bool asks_for_id = false;
  v1::ProduceRequest request;
  v1::ProduceResponse response;
  v1::InitProducerIdRequest id_request;
  v1::InitProducerIdResponse id_response;
};

Sender::Sender(std::shared_ptr<Cluster> cluster, ProducerConfig config)
    : cluster_(std::move(cluster)),
      config_(checked(config)),
      lookup_thread_([this](const std::stop_token& stop) { run_lookups(stop); }),
      sender_thread_([this](const std::stop_token& stop) { run_sender(stop); }) {}

Sender::~Sender() { close(config_.delivery_timeout); }

std::future<RecordPlace> Sender::send(Record record, const CallOptions& options) {
  const Context context(options);
  if (record.partition && *record.partition < 0) throw std::invalid_argument("Record::partition is negative");
  // One such record would fail all records of its batch.
  check_utf8("Record::topic", record.topic);
  for (const auto& header : record.headers) check_utf8("the key of a header", header.key);
  const auto partition = record.partition ? *record.partition : choose_partition(record, context);
  const auto topic = record.topic;
  PendingRecord pending;
  pending.size = size_of(record);
  pending.record = encode(std::move(record));
  auto future = pending.promise.get_future();

  std::unique_lock lock(mutex_);
  const bool has_room = outcome_.wait_until(lock, context.stop(), context.deadline(),
                                            [&] { return is_closed_ || pending_ < config_.max_pending; });
  if (!has_room) {
    if (context.stopped()) throw CancelledError("producing to " + topic + ": a stop was requested");
    auto failure = make_failure("producing to " + topic, v1::ERROR_CODE_REQUEST_TIMED_OUT,
                                std::to_string(pending_) + " records have no outcome yet (ProducerConfig::max_pending)");
    failure.definite = true;
    throw Error(std::move(failure));
  }
  if (is_closed_) throw std::logic_error("the producer is closed");
  ++pending_;
  pending.queued = Clock::now();
  pending.deadline = pending.queued + config_.delivery_timeout;
  auto& queue = queue_of(topic, partition);
  const bool was_empty = queue.empty();
  queue.put(std::move(pending));
  if (queue.state == State::idle && (was_empty || *queue.ready_at(config_.linger, config_.batch_bytes) <= Clock::now())) {
    has_work_ = true;
    work_.notify_one();
  }
  return future;
}

/// Returns the partition of the key's hash. Without a key, returns the same random partition until a batch of it is taken.
std::int32_t Sender::choose_partition(const Record& record, const Context& context) {
  std::int32_t count = 0;
  try {
    count = cluster_->partition_count(context, record.topic);
  } catch (const Error& error) {
    auto failure = error.failure();
    failure.definite = true;  // A look-up appends nothing.
    throw Error(std::move(failure));
  }
  if (record.key) return partition_for_key(*record.key, count);
  const std::lock_guard lock(mutex_);
  const auto [found, is_new] = sticky_.try_emplace(record.topic, 0);
  if (is_new || found->second >= count) found->second = static_cast<std::int32_t>(random_below(static_cast<std::uint32_t>(count)));
  return found->second;
}

PartitionQueue& Sender::queue_of(const std::string& topic, std::int32_t partition) {
  auto& found = queues_[{topic, partition}];
  if (!found) found = std::make_unique<PartitionQueue>(topic, partition);
  return *found;
}

bool Sender::flush(milliseconds timeout) {
  const auto deadline = Clock::now() + std::min(timeout, longest_timeout);
  std::unique_lock lock(mutex_);
  std::vector<std::pair<PartitionQueue*, std::uint64_t>> marks;
  for (const auto& [name, queue] : queues_) marks.emplace_back(queue.get(), queue->mark_flush());
  has_work_ = true;
  work_.notify_one();
  return outcome_.wait_until(lock, deadline, [&] {
    return std::all_of(marks.begin(), marks.end(), [](const auto& mark) { return mark.first->reached(mark.second); });
  });
}

bool Sender::close(milliseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  const bool is_flushed = flush(timeout);
  const std::lock_guard ending(ending_);
  sender_thread_.request_stop();
  lookup_thread_.request_stop();
  if (sender_thread_.joinable()) sender_thread_.join();
  if (lookup_thread_.joinable()) lookup_thread_.join();
  std::unique_lock lock(mutex_);
  for (const auto& [key, call] : calls_) call->context.TryCancel();
  outcome_.wait(lock, [&] { return calls_.empty(); });
  fail_everything();
  fulfil(lock);
  return is_flushed;
}

void Sender::run_sender(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    has_work_ = false;
    ended_calls_.clear();
    const auto next = step_all(Clock::now());
    if (!delivered_.empty()) {
      fulfil(lock);
      continue;
    }
    const auto woken = [this] { return has_work_; };
    if (next)
      work_.wait_until(lock, stop, *next, woken);
    else
      work_.wait(lock, stop, woken);
  }
}

void Sender::run_lookups(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (lookup_.wait(lock, stop, [this] { return !lookups_.empty(); })) {
    const auto topic = *lookups_.begin();
    lock.unlock();
    std::optional<Failure> failure;
    try {
      cluster_->refresh(Context(CallOptions{cluster_->request_timeout(), stop}), topic);
    } catch (const Error& error) {
      failure = error.failure();
    } catch (const CancelledError&) {
      return;
    }
    lock.lock();
    lookups_.erase(topic);
    on_lookup(topic, failure);
    has_work_ = true;
    work_.notify_one();
  }
}

std::optional<TimePoint> Sender::step_all(TimePoint now) {
  std::map<std::string, std::vector<PartitionQueue*>> ready;
  for (const auto& [name, queue] : queues_) step(*queue, now, ready);
  for (const auto& [address, queues] : ready) produce(address, queues);
  std::optional<TimePoint> next;
  for (const auto& [name, queue] : queues_) {
    auto at = queue->state == State::waiting ? std::optional(queue->due) : std::nullopt;
    if (queue->state == State::idle) at = queue->ready_at(config_.linger, config_.batch_bytes);
    if (at && (!next || *at < *next)) next = at;
  }
  return next;
}

void Sender::step(PartitionQueue& queue, TimePoint now, std::map<std::string, std::vector<PartitionQueue*>>& ready) {
  if (queue.state == State::idle) {
    const auto at = queue.ready_at(config_.linger, config_.batch_bytes);
    if (!at || *at > now) return;
    queue.take(config_.batch_bytes, now);
    // Records without a key go to another partition from now on.
    if (const auto found = sticky_.find(queue.topic); found != sticky_.end() && found->second == queue.partition)
      sticky_.erase(found);
  }
  if (queue.state != State::waiting || queue.due > now) return;
  auto& batch = *queue.batch;
  if (batch.has_failed && batch.deadline - now < least_attempt) return deliver(queue, 0, *queue.last);
  if (batch.deadline <= now)
    return deliver(queue, 0, given_up(queue, "delivery_timeout ended while the record waited for earlier records of its partition"));
  const auto route = cluster_->known_route(queue.topic, queue.partition);
  if (!route) {
    queue.state = State::finding_leader;
    lookups_.insert(queue.topic);
    lookup_.notify_one();
    return;
  }
  if (queue.topic_id != route->topic_id) {
    // Sequence numbers belong to one topic. A batch that may be in the log of the deleted topic is not sent to its successor.
    if (batch.is_unknown) {
      auto failure = make_failure(operation_of(queue), v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
                                  "the topic was deleted and created again");
      // The broker that described the topic may be behind. If the id is the same after the request timeout, it is not behind,
      // and the outcome can never be learned.
      if (!batch.doubt_until) batch.doubt_until = now + cluster_->request_timeout();
      if (now < *batch.doubt_until) return on_failure(queue, std::move(failure), false);
      return deliver(queue, 0, std::move(failure));
    }
    queue.topic_id = route->topic_id;
    queue.forget_id();
  }
  if (queue.producer_id < 0)
    ask_for_id(queue, *route);
  else
    ready[route->address].push_back(&queue);
}

void Sender::ask_for_id(PartitionQueue& queue, const Route& route) {
  auto call = std::make_unique<ProduceCall>();
  call->asks_for_id = true;
  call->queues = {&queue};
  call->stub = v1::LogService::NewStub(cluster_->channel(route.address));
  set_deadline(call->context, std::min(queue.batch->deadline, Clock::now() + cluster_->request_timeout()));
  queue.state = State::asking_id;
  start(std::move(call));
}

/// Sends the batches of several partitions that one broker leads, in as few calls as the size of requests allows.
void Sender::produce(const std::string& address, const std::vector<PartitionQueue*>& queues) {
  for (auto next = queues.begin(); next != queues.end();) {
    auto call = std::make_unique<ProduceCall>();
    call->stub = v1::LogService::NewStub(cluster_->channel(address));
    call->request.set_acks(v1::ACKS_ALL);
    auto deadline = Clock::now() + cluster_->request_timeout();
    std::size_t size = 0;
    for (; next != queues.end(); ++next) {
      auto& queue = **next;
      auto& list = queue.batch->list;
      const auto added = list.ByteSizeLong();
      if (size > 0 && size + added > largest_request) break;
      const auto route = cluster_->known_route(queue.topic, queue.partition);
      if (!route || route->address != address || route->topic_id != queue.topic_id) continue;  // The metadata has changed since step().
      size += added;
      deadline = std::min(deadline, queue.batch->deadline);
      list.set_producer_id(queue.producer_id);
      list.set_producer_epoch(queue.producer_epoch);
      list.set_base_sequence(queue.next_sequence);
      auto& partition = *call->request.add_partitions();
      partition.set_topic(queue.topic);
      partition.set_partition(queue.partition);
      partition.set_topic_id(queue.topic_id);
      partition.set_current_leader_epoch(route->leader_epoch);
      partition.mutable_records()->Swap(&list);  // on_answer swaps it back.
      queue.state = State::sending;
      call->queues.push_back(&queue);
    }
    if (call->queues.empty()) return;
    call->request.set_timeout_ms(Context::server_wait_ms(deadline));
    set_deadline(call->context, deadline);
    start(std::move(call));
  }
}

void Sender::start(std::unique_ptr<ProduceCall> started) {
  auto* const call = started.get();
  calls_.emplace(call, std::move(started));
  const auto done = [this, call](const grpc::Status& status) {
    const std::lock_guard lock(mutex_);
    on_answer(*call, status);
    const auto ended = calls_.find(call);
    ended_calls_.push_back(std::move(ended->second));
    calls_.erase(ended);
    has_work_ = true;
    work_.notify_one();
    if (calls_.empty()) outcome_.notify_all();
  };
  if (call->asks_for_id)
    call->stub->async()->InitProducerId(&call->context, &call->id_request, &call->id_response, done);
  else
    call->stub->async()->Produce(&call->context, &call->request, &call->response, done);
}

void Sender::on_answer(ProduceCall& call, const grpc::Status& status) {
  if (call.asks_for_id) {
    auto& queue = *call.queues.front();
    if (!status.ok()) return on_failure(queue, call_failure("asking for a producer id", status), false);
    queue.producer_id = call.id_response.producer_id();
    queue.producer_epoch = call.id_response.producer_epoch();
    queue.next_sequence = 0;
    queue.state = State::waiting;
    return;
  }
  const bool is_complete = call.response.partitions_size() == static_cast<int>(call.queues.size());
  for (int i = 0; i < static_cast<int>(call.queues.size()); ++i) {
    auto& queue = *call.queues[static_cast<std::size_t>(i)];
    call.request.mutable_partitions(i)->mutable_records()->Swap(&queue.batch->list);
    if (!status.ok()) {
      on_failure(queue, call_failure(operation_of(queue), status), true);
    } else if (!is_complete) {
      on_failure(queue, make_failure(operation_of(queue), v1::ERROR_CODE_UNKNOWN_SERVER_ERROR, "the response does not have every partition"), true);
    } else if (const auto& result = call.response.partitions(i); result.has_error()) {
      on_failure(queue, partition_failure(operation_of(queue), result.error()), true);
    } else {
      on_success(queue, result.base_offset());
    }
  }
}

void Sender::on_lookup(const std::string& topic, const std::optional<Failure>& failure) {
  for (const auto& [name, queue] : queues_) {
    if (queue->topic != topic || queue->state != State::finding_leader) continue;
    if (failure)
      on_failure(*queue, *failure, false);
    else if (!cluster_->known_route(topic, queue->partition))
      on_failure(*queue, cluster_->missing_route(topic, queue->partition), false);
    else
      queue->state = State::waiting;
  }
}

void Sender::on_success(PartitionQueue& queue, std::int64_t base_offset) {
  queue.last.reset();
  queue.next_sequence = sequence_after(queue.next_sequence, queue.batch->promises.size());
  deliver(queue, base_offset, std::nullopt);
}

/// Plans the next attempt, or ends the batch if the failure is final. `was_sent`: the failed call carried the records.
void Sender::on_failure(PartitionQueue& queue, Failure failure, bool was_sent) {
  auto& batch = *queue.batch;
  const bool has_hint = cluster_->learn(failure, queue.topic, queue.partition);
  if (was_sent) {
    batch.is_unknown = batch.is_unknown || !failure.definite;
  } else {
    failure.definite = true;  // A look-up appends nothing.
  }
  queue.state = State::waiting;
  const auto now = Clock::now();
  const bool is_too_large =
      failure.code == v1::ERROR_CODE_MESSAGE_TOO_LARGE || failure.code == v1::ERROR_CODE_RECORD_LIST_TOO_LARGE;
  if (was_sent && is_too_large && !batch.is_unknown && queue.halve()) {
    queue.due = now;
    return;
  }
  if (!failure.retriable || is_missing(queue, failure, now)) return deliver(queue, 0, std::move(failure));
  queue.due = now + std::max(failure.retry_after, batch.backoff.next());
  // Follow a hint at once, but the next one after a pause: two brokers may name each other.
  if (has_hint && !batch.followed_hint) queue.due = now;
  batch.followed_hint = has_hint;
  batch.has_failed = true;
  queue.last = std::move(failure);
  if (batch.deadline - queue.due < least_attempt) deliver(queue, 0, *queue.last);
}

/// Returns whether brokers have not known the partition for `missing_topic_patience`, and none has known it before.
bool Sender::is_missing(PartitionQueue& queue, const Failure& failure, TimePoint now) const {
  if (failure.code == v1::ERROR_CODE_LEADER_NOT_AVAILABLE) queue.missing_since.reset();
  if (failure.code != v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION || !queue.topic_id.empty()) return false;
  if (!queue.missing_since) queue.missing_since = now;
  // A record that was sent later than the first such answer has the whole time, too.
  const auto queued = queue.batch->deadline - config_.delivery_timeout;
  return now - std::max(*queue.missing_since, queued) >= missing_topic_patience;
}

void Sender::deliver(PartitionQueue& queue, std::int64_t base_offset, std::optional<Failure> failure) {
  auto batch = queue.finish();
  if (failure) {
    failure->definite = failure->definite && !batch.is_unknown;
    // Either the broker may have used the sequence numbers, or it accepts no more batches with this id.
    if (batch.is_unknown || failure->code == v1::ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER ||
        failure->code == v1::ERROR_CODE_INVALID_PRODUCER_EPOCH)
      queue.forget_id();
  }
  delivered_.push_back({std::move(batch), &queue, base_offset, std::move(failure)});
}

void Sender::fail_everything() {
  for (const auto& [name, queue] : queues_) {
    while (queue->batch || !queue->empty()) {
      if (!queue->batch) queue->take(config_.batch_bytes, Clock::now());
      deliver(*queue, 0, given_up(*queue, "the producer was closed before the record was delivered"));
    }
  }
}

void Sender::fulfil(std::unique_lock<std::mutex>& lock) {
  auto delivered = std::exchange(delivered_, {});
  lock.unlock();
  for (auto& [batch, queue, base_offset, failure] : delivered) {
    const auto error = failure ? std::make_exception_ptr(Error(std::move(*failure))) : nullptr;
    std::int64_t offset = base_offset;
    for (auto& promise : batch.promises) {
      if (error)
        promise.set_exception(error);
      else
        promise.set_value({queue->partition, offset++});
    }
  }
  lock.lock();
  for (const auto& [batch, queue, base_offset, failure] : delivered) {
    queue->complete(batch.promises.size());
    pending_ -= batch.promises.size();
  }
  outcome_.notify_all();
}

}  // namespace paceline::detail

namespace paceline {

Producer::Producer(std::shared_ptr<detail::Cluster> cluster, ProducerConfig config)
    : sender_(std::make_unique<detail::Sender>(std::move(cluster), config)) {}
Producer::~Producer() = default;
Producer::Producer(Producer&&) noexcept = default;
Producer& Producer::operator=(Producer&&) noexcept = default;

std::future<RecordPlace> Producer::send(Record record, const CallOptions& options) {
  return sender_->send(std::move(record), options);
}
bool Producer::flush(std::chrono::milliseconds timeout) { return sender_->flush(timeout); }
bool Producer::close(std::chrono::milliseconds timeout) { return sender_->close(timeout); }

}  // namespace paceline
