#include "fetcher.hpp"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace paceline::detail {
#include "text.hpp"


struct Fetcher::FetchCall {
  struct Asked {
    Name name;
    std::uint64_t assignment = 0;
    std::int32_t leader_epoch = 0;
  };
  grpc::ClientContext context;
  std::unique_ptr<v1::LogService::Stub> stub;
  std::vector<Asked> asked;
  v1::FetchRequest request;
  v1::FetchResponse response;
  grpc::Status status;
};

struct Fetcher::Answers {
  std::mutex mutex;
  std::condition_variable_any arrived;
  bool is_woken = false;
  std::map<FetchCall*, std::unique_ptr<FetchCall>> calls;
  /// Calls that have ended, freed by the consumer's thread: gRPC 1.51 crashes when one of its own threads releases the last
  /// reference to a channel, and a call holds one.
  std::vector<std::unique_ptr<FetchCall>> done;
};

namespace {

constexpr milliseconds least_lookup{1'000};

ConsumedRecord decode(const std::string& topic, std::int32_t partition, const v1::Record& record) {
  ConsumedRecord found;
  found.topic = topic;
  found.partition = partition;
  found.offset = record.offset();
  if (record.has_key()) found.key = record.key();
  if (record.has_value()) found.value = record.value();
  found.timestamp = Timestamp(std::chrono::milliseconds(record.timestamp_ms()));
  for (const auto& header : record.headers())
    found.headers.push_back({header.key(), header.has_value() ? Bytes(header.value()) : std::nullopt});
  return found;
}

}  // namespace

Fetcher::Fetcher(std::shared_ptr<Cluster> cluster, ConsumerConfig config)
    : cluster_(std::move(cluster)), config_(config), answers_(std::make_unique<Answers>()) {
  if (config.max_bytes < 0 || config.max_wait < milliseconds(0))
    throw std::invalid_argument("ConsumerConfig: max_bytes and max_wait must not be negative");
}

Fetcher::~Fetcher() {
  std::unique_lock lock(answers_->mutex);
  for (const auto& [key, call] : answers_->calls) call->context.TryCancel();
  answers_->arrived.wait(lock, [this] { return answers_->calls.empty(); });
}

void Fetcher::assign(const std::string& topic, std::int32_t partition, std::optional<OffsetSpec> start,
                     std::int64_t offset) {
  if (partition < 0 || offset < 0) throw std::invalid_argument("partition and offset must not be negative");
  Position at;
  at.next = at.returned = offset;
  at.start = start;
  at.assignment = ++assignments_;
  positions_[{topic, partition}] = at;
  std::erase_if(buffered_, [&](const auto& record) { return record.topic == topic && record.partition == partition; });
}

void Fetcher::assign_topic(const std::string& topic, OffsetSpec start, const CallOptions& options) {
  const auto count = cluster_->partition_count(Context(options), topic);
  for (std::int32_t partition = 0; partition < count; ++partition) assign(topic, partition, start, 0);
}

void Fetcher::unassign(const std::string& topic, std::int32_t partition) {
  positions_.erase({topic, partition});
  check_utf8("the topic", topic);
  std::erase_if(buffered_, [&](const auto& record) { return record.topic == topic && record.partition == partition; });
}

void Fetcher::resume(const std::string& topic, std::int32_t partition, std::int64_t offset,
                     std::optional<std::int32_t> epoch) {
  assign(topic, partition, std::nullopt, offset);
  positions_[{topic, partition}].epoch = epoch;
}

Offsets Fetcher::consumed() const {
  Offsets offsets;
  for (const auto& [name, at] : positions_)
    if (!at.start) offsets[{name.first, name.second}] = {at.returned, {}, at.epoch};
  return offsets;
}

void Fetcher::fail_next_poll(Failure failure) { errors_.push_back(std::make_exception_ptr(Error(std::move(failure)))); }

void Fetcher::wake() {
  const std::lock_guard lock(answers_->mutex);
  answers_->is_woken = true;
  answers_->arrived.notify_all();
}

std::optional<std::int64_t> Fetcher::position(const std::string& topic, std::int32_t partition) const {
  const auto found = positions_.find({topic, partition});
  if (found == positions_.end() || found->second.start) return std::nullopt;
  return found->second.returned;
}

std::vector<ConsumedRecord> Fetcher::poll(const Context& context, std::size_t max_records) {
  if (max_records == 0) throw std::invalid_argument("max_records must be at least 1");
  while (true) {
    if (!buffered_.empty()) return give(max_records);
    if (!errors_.empty()) {
      const auto error = errors_.front();
      errors_.pop_front();
      std::rethrow_exception(error);
    }
    std::vector<std::unique_ptr<FetchCall>> done;
    bool is_woken = false;
    {
      const std::lock_guard lock(answers_->mutex);
      done.swap(answers_->done);
      is_woken = std::exchange(answers_->is_woken, false);
    }
    for (const auto& call : done) on_answer(*call);
    if (!buffered_.empty() || !errors_.empty()) continue;
    if (context.stopped()) throw CancelledError("polling: a stop was requested");
    if (is_woken || context.expired()) return {};
    start_fetches(context);
    if (!errors_.empty()) continue;

    auto until = context.deadline();
    for (const auto& [name, at] : positions_)
      if (!at.is_fetching) until = std::min(until, at.due);
    std::unique_lock lock(answers_->mutex);
    answers_->arrived.wait_until(lock, context.stop(), until, [this] { return answers_->is_woken || !answers_->done.empty(); });
  }
}

/// Returns records of the buffer and moves the positions that the caller sees.
std::vector<ConsumedRecord> Fetcher::give(std::size_t max_records) {
  const auto count = std::min(max_records, buffered_.size());
  std::vector<ConsumedRecord> given;
  given.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto& record = buffered_.front();
    positions_[{record.topic, record.partition}].returned = record.offset + 1;
    given.push_back(std::move(record));
    buffered_.pop_front();
  }
  return given;
}

/// Sends one long poll to each broker that leads partitions without one.
void Fetcher::start_fetches(const Context& context) {
  std::map<std::string, std::unique_ptr<FetchCall>> by_address;
  for (auto& [name, at] : positions_) {
    if (at.is_fetching || at.due > Clock::now()) continue;
    const auto route = prepare(context, name, at);
    if (!route) continue;
    auto& call = by_address[route->address];
    if (!call) {
      call = std::make_unique<FetchCall>();
      call->stub = v1::LogService::NewStub(cluster_->channel(route->address));
      call->request.set_max_wait_ms(static_cast<std::int32_t>(config_.max_wait.count()));
      call->request.set_min_bytes(1);
      call->request.set_max_bytes(config_.max_bytes);
      call->request.set_format(v1::FETCH_FORMAT_RECORDS);
    }
    auto& wanted = *call->request.add_partitions();
    wanted.set_topic(name.first);
    wanted.set_partition(name.second);
    wanted.set_topic_id(route->topic_id);
    wanted.set_fetch_offset(at.next);
    wanted.set_current_leader_epoch(route->leader_epoch);
    if (at.epoch) wanted.set_last_fetched_epoch(*at.epoch);
    wanted.set_max_bytes(config_.max_bytes);
    call->asked.push_back({name, at.assignment, route->leader_epoch});
    at.is_fetching = true;
  }
  for (auto& [address, started] : by_address) {
    auto* const call = started.get();
    set_deadline(call->context, Clock::now() + config_.max_wait + cluster_->request_timeout());
    const std::lock_guard lock(answers_->mutex);
    answers_->calls.emplace(call, std::move(started));
    call->stub->async()->Fetch(&call->context, &call->request, &call->response,
                               [call, answers = answers_.get()](grpc::Status status) {
                                 const std::lock_guard guard(answers->mutex);
                                 call->status = std::move(status);
                                 const auto ended = answers->calls.find(call);
                                 answers->done.push_back(std::move(ended->second));
                                 answers->calls.erase(ended);
                                 answers->arrived.notify_all();
                               });
  }
}

/// Finds position and leader of a partition; nothing when that failed, and the partition waits or an error is kept.
std::optional<Route> Fetcher::prepare(const Context& poll, const Name& name, Position& at) {
  const auto& [topic, partition] = name;
  // A poll that ends soon must not keep a lookup from ever having an answer.
  const Context context(std::max(poll.deadline(), Clock::now() + least_lookup), poll.stop());
  try {
    if (at.start) {
      auto offset = cluster_->list_offset(context, topic, partition, *at.start);
      if (!offset) offset = cluster_->list_offset(context, topic, partition, OffsetSpec::latest());
      at.next = at.returned = offset.value_or(0);
      at.start.reset();
    }
    return cluster_->route(context.within(cluster_->request_timeout()), topic, partition);
  } catch (const Error& error) {
    on_failure(name, at, error.failure());
    return std::nullopt;
  }
}

void Fetcher::on_answer(const FetchCall& call) {
  const bool is_complete = call.response.partitions_size() == static_cast<int>(call.asked.size());
  for (int i = 0; i < static_cast<int>(call.asked.size()); ++i) {
    const auto& [name, assignment, leader_epoch] = call.asked[static_cast<std::size_t>(i)];
    const auto found = positions_.find(name);
    if (found == positions_.end() || found->second.assignment != assignment) continue;
    auto& at = found->second;
    at.is_fetching = false;
    const auto operation =
        "reading " + name.first + "/" + std::to_string(name.second) + " from offset " + std::to_string(at.next);
    if (!call.status.ok())
      on_failure(name, at, call_failure(operation, call.status));
    else if (!is_complete)
      on_failure(name, at, make_failure(operation, v1::ERROR_CODE_UNKNOWN_SERVER_ERROR, "the answer lacks partitions"));
    else if (const auto& result = call.response.partitions(i); result.has_error())
      on_failure(name, at, partition_failure(operation, result.error()));
    else
      accept(name, at, result, leader_epoch);
  }
}

/// Keeps the records of an answer and moves the position.
void Fetcher::accept(const Name& name, Position& at, const v1::FetchPartitionResult& result,
                     std::int32_t leader_epoch) {
  at.due = {};
  at.backoff.reset();
  if (result.has_diverging_epoch()) {
    const auto& diverging = result.diverging_epoch();
    at.epoch = diverging.epoch();
    // Without a removed record that was read, the next fetch only names the epoch that the leader knows.
    if (diverging.end_offset() >= at.next) return;
    const TruncatedError error(name.first, name.second, at.next, diverging.end_offset());
    at.next = at.returned = diverging.end_offset();
    errors_.push_back(std::make_exception_ptr(error));
    return;
  }
  for (const auto& record : result.records().records()) {
    if (record.offset() < at.next) continue;
    buffered_.push_back(decode(name.first, name.second, record));
    at.next = record.offset() + 1;
    at.epoch = leader_epoch;
  }
}

void Fetcher::on_failure(const Name& name, Position& at, const Failure& failure) {
  if (failure.code == v1::ERROR_CODE_OFFSET_OUT_OF_RANGE && config_.reset != ResetPolicy::error) {
    at.start = config_.reset == ResetPolicy::latest ? OffsetSpec::latest() : OffsetSpec::earliest();
    at.epoch.reset();
    return;
  }
  if (!failure.retriable) {
    errors_.push_back(std::make_exception_ptr(Error(failure)));
    return;
  }
  cluster_->learn(failure, name.first, name.second);
  at.due = Clock::now() + std::max(failure.retry_after, at.backoff.next());
}

}  // namespace paceline::detail

namespace paceline {

Consumer::Consumer(std::shared_ptr<detail::Cluster> cluster, ConsumerConfig config)
    : fetcher_(std::make_unique<detail::Fetcher>(std::move(cluster), config)) {}
Consumer::~Consumer() = default;
Consumer::Consumer(Consumer&&) noexcept = default;
Consumer& Consumer::operator=(Consumer&&) noexcept = default;

void Consumer::assign(const std::string& topic, std::int32_t partition, std::int64_t offset) {
  fetcher_->assign(topic, partition, std::nullopt, offset);
}
void Consumer::assign(const std::string& topic, std::int32_t partition, OffsetSpec start) {
  fetcher_->assign(topic, partition, start, 0);
}
void Consumer::assign_topic(const std::string& topic, OffsetSpec start, const CallOptions& options) {
  fetcher_->assign_topic(topic, start, options);
}
std::optional<std::int64_t> Consumer::position(const std::string& topic, std::int32_t partition) const {
  return fetcher_->position(topic, partition);
}
std::vector<ConsumedRecord> Consumer::poll(std::chrono::milliseconds timeout, std::stop_token stop,
                                           std::size_t max_records) {
  if (!fetcher_->has_partitions())
    throw std::logic_error("the consumer has no partitions: call assign or assign_topic first");
  return fetcher_->poll(detail::Context(CallOptions{timeout, std::move(stop)}), max_records);
}

}  // namespace paceline
