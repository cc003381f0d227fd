#include "fetcher.hpp"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "text.hpp"

namespace paceline::detail {

/// One call under way: a Fetch, or a ListOffsets for partitions without a position.
struct Fetcher::Call {
  struct Asked {
    Name name;
    std::uint64_t assignment = 0;
    Route route;
  };
  grpc::ClientContext context;
  std::unique_ptr<v1::LogService::Stub> stub;
  std::vector<Asked> asked;
  bool lists_offsets = false;
  v1::FetchRequest request;
  v1::FetchResponse response;
  v1::ListOffsetsRequest offsets_request;
  v1::ListOffsetsResponse offsets_response;
  grpc::Status status;
};

struct Fetcher::Answers {
  std::mutex mutex;
  std::condition_variable_any arrived;  // for the consumer's thread
  std::condition_variable_any lookup;   // for the lookup thread
  bool is_woken = false;
  std::map<Call*, std::unique_ptr<Call>> calls;
  /// Calls that have ended, freed by the consumer's thread: gRPC 1.51 crashes when one of its own threads releases the last
  /// reference to a channel, and a call holds one.
  std::vector<std::unique_ptr<Call>> done;
  /// Topics whose leaders are wanted.
  std::set<std::string> lookups;
  std::vector<std::pair<std::string, std::optional<Failure>>> looked_up;
};

namespace {

ConsumerConfig checked(ConsumerConfig config) {
  if (config.max_bytes < 0 || config.max_wait < milliseconds(0))
    throw std::invalid_argument("ConsumerConfig: max_bytes and max_wait must not be negative");
  // The broker also limits max_wait_ms to one minute.
  config.max_wait = std::min<milliseconds>(config.max_wait, std::chrono::minutes(1));
  return config;
}

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

Fetcher::Fetcher(std::shared_ptr<Cluster> cluster, ConsumerConfig config, Patience patience)
    : cluster_(std::move(cluster)),
      config_(checked(config)),
      patience_(patience),
      answers_(std::make_unique<Answers>()),
      lookup_thread_([this](const std::stop_token& stop) { run_lookups(stop); }) {}

Fetcher::~Fetcher() {
  std::unique_lock lock(answers_->mutex);
  for (const auto& [key, call] : answers_->calls) call->context.TryCancel();
  answers_->arrived.wait(lock, [this] { return answers_->calls.empty(); });
}

void Fetcher::assign(const std::string& topic, std::int32_t partition, std::optional<OffsetSpec> start,
                     std::int64_t offset) {
  if (partition < 0 || offset < 0) throw std::invalid_argument("partition and offset must not be negative");
  check_utf8("the topic", topic);
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
  std::erase_if(buffered_, [&](const auto& record) { return record.topic == topic && record.partition == partition; });
}

void Fetcher::resume(const std::string& topic, std::int32_t partition, std::int64_t offset,
                     std::optional<std::int32_t> epoch) {
  assign(topic, partition, std::nullopt, offset);
  positions_[{topic, partition}].epoch = epoch;
}

Offsets Fetcher::consumed() const {
  Offsets offsets;
  for (const auto& [name, at] : positions_) {
    const auto id = cluster_->known_topic_id(name.first);
    const bool is_of_deleted_topic = !at.topic_id.empty() && !id.empty() && at.topic_id != id;
    if (!at.start && !is_of_deleted_topic) offsets[{name.first, name.second}] = {at.returned, {}, at.epoch};
  }
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
    const bool is_woken = take_answers();
    if (!buffered_.empty() || !errors_.empty()) continue;
    if (context.stopped()) throw CancelledError("polling: a stop was requested");
    // Even a poll with timeout 0 starts calls; a later poll returns their records.
    start_calls();
    if (is_woken || context.expired()) return {};

    auto until = context.deadline();
    for (const auto& [name, at] : positions_)
      if (!at.is_asking && !at.awaits_leader) until = std::min(until, at.due);
    std::unique_lock lock(answers_->mutex);
    answers_->arrived.wait_until(lock, context.stop(), until, [this] {
      return answers_->is_woken || !answers_->done.empty() || !answers_->looked_up.empty();
    });
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

/// Handles calls and look-ups that have ended. Returns whether the poll was woken.
bool Fetcher::take_answers() {
  std::vector<std::unique_ptr<Call>> done;
  std::vector<std::pair<std::string, std::optional<Failure>>> looked_up;
  bool is_woken = false;
  {
    const std::lock_guard lock(answers_->mutex);
    done.swap(answers_->done);
    looked_up.swap(answers_->looked_up);
    is_woken = std::exchange(answers_->is_woken, false);
  }
  for (const auto& [topic, failure] : looked_up) on_lookup(topic, failure);
  for (const auto& call : done) on_answer(*call);
  return is_woken;
}

/// Starts the next call of each partition that has none: a look-up of its leader, a look-up of its position, or a long poll.
void Fetcher::start_calls() {
  std::map<std::string, std::unique_ptr<Call>> lists;
  std::map<std::string, std::unique_ptr<Call>> fetches;
  for (auto& [name, at] : positions_) {
    const auto& [topic, partition] = name;
    if (at.is_asking || at.awaits_leader || at.due > Clock::now()) continue;
    const auto route = cluster_->known_route(topic, partition);
    at.awaits_leader = !route;
    // A cut-off leader may answer until its proof of leadership is too old, and always if it is the only ISR member; so
    // old metadata is refreshed even without an error.
    if (!route || cluster_->take_old(topic)) {
      const std::lock_guard lock(answers_->mutex);
      answers_->lookups.insert(topic);
      answers_->lookup.notify_one();
    }
    if (!route) continue;
    at.hindrance.is_found = true;
    auto& call = (at.start ? lists : fetches)[route->address];
    if (!call) call = make_call(route->address);
    if (at.start) {
      call->lists_offsets = true;
      const bool needs_end = at.start->kind() == OffsetSpec::Kind::timestamp && !at.end;
      *call->offsets_request.add_partitions() =
          Cluster::offset_query(topic, partition, needs_end ? OffsetSpec::latest() : *at.start, route->leader_epoch);
    } else {
      auto& wanted = *call->request.add_partitions();
      wanted.set_topic(topic);
      wanted.set_partition(partition);
      wanted.set_topic_id(route->topic_id);
      wanted.set_fetch_offset(at.next);
      wanted.set_current_leader_epoch(route->leader_epoch);
      if (at.epoch) wanted.set_last_fetched_epoch(*at.epoch);
      wanted.set_max_bytes(config_.max_bytes);
    }
    call->asked.push_back({name, at.assignment, *route});
  }
  for (auto* calls : {&lists, &fetches})
    for (auto& [address, call] : *calls) start(std::move(call));
}

std::unique_ptr<Fetcher::Call> Fetcher::make_call(const std::string& address) {
  auto call = std::make_unique<Call>();
  call->stub = v1::LogService::NewStub(cluster_->channel(address));
  call->request.set_max_wait_ms(static_cast<std::int32_t>(config_.max_wait.count()));
  call->request.set_min_bytes(1);
  call->request.set_max_bytes(config_.max_bytes);
  call->request.set_format(v1::FETCH_FORMAT_RECORDS);
  return call;
}

void Fetcher::start(std::unique_ptr<Call> started) {
  auto* const call = started.get();
  for (const auto& asked : call->asked) positions_.at(asked.name).is_asking = true;
  const auto wait = call->lists_offsets ? milliseconds(0) : config_.max_wait;
  set_deadline(call->context, Clock::now() + wait + cluster_->request_timeout());
  const auto done = [call, answers = answers_.get()](grpc::Status status) {
    const std::lock_guard guard(answers->mutex);
    call->status = std::move(status);
    const auto ended = answers->calls.find(call);
    answers->done.push_back(std::move(ended->second));
    answers->calls.erase(ended);
    answers->arrived.notify_all();
  };
  const std::lock_guard lock(answers_->mutex);
  answers_->calls.emplace(call, std::move(started));
  if (call->lists_offsets)
    call->stub->async()->ListOffsets(&call->context, &call->offsets_request, &call->offsets_response, done);
  else
    call->stub->async()->Fetch(&call->context, &call->request, &call->response, done);
}

void Fetcher::run_lookups(const std::stop_token& stop) {
  auto& answers = *answers_;
  std::unique_lock lock(answers.mutex);
  while (answers.lookup.wait(lock, stop, [&] { return !answers.lookups.empty(); })) {
    const auto topic = *answers.lookups.begin();
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
    answers.lookups.erase(topic);
    answers.looked_up.emplace_back(topic, std::move(failure));
    answers.arrived.notify_all();
  }
}

void Fetcher::on_lookup(const std::string& topic, const std::optional<Failure>& failure) {
  for (auto& [name, at] : positions_) {
    if (name.first != topic || !std::exchange(at.awaits_leader, false)) continue;
    if (cluster_->known_route(topic, name.second)) continue;
    on_failure(name, at, failure ? *failure : cluster_->missing_route(topic, name.second));
  }
}

void Fetcher::on_answer(const Call& call) {
  const auto count = call.lists_offsets ? call.offsets_response.partitions_size() : call.response.partitions_size();
  const bool is_complete = count == static_cast<int>(call.asked.size());
  for (int i = 0; i < static_cast<int>(call.asked.size()); ++i) {
    const auto& [name, assignment, route] = call.asked[static_cast<std::size_t>(i)];
    const auto found = positions_.find(name);
    if (found == positions_.end() || found->second.assignment != assignment) continue;
    auto& at = found->second;
    at.is_asking = false;
    const auto place = name.first + "/" + std::to_string(name.second);
    const auto operation = call.lists_offsets ? "listing an offset of " + place
                                              : "reading " + place + " from offset " + std::to_string(at.next);
    const auto take = [&](const auto& result) {
      if (result.has_error())
        on_failure(name, at, partition_failure(operation, result.error()));
      else
        accept(name, at, result, route);
    };
    if (!call.status.ok())
      on_failure(name, at, call_failure(operation, call.status));
    else if (!is_complete)
      on_failure(name, at, make_failure(operation, v1::ERROR_CODE_UNKNOWN_SERVER_ERROR, "the response does not have every partition"));
    else if (call.lists_offsets)
      take(call.offsets_response.partitions(i));
    else
      take(call.response.partitions(i));
  }
}

/// Takes a position that was looked up.
void Fetcher::accept(const Name&, Position& at, const v1::ListOffsetsPartitionResult& result, const Route& route) {
  at.hindrance.end();
  const bool is_other_topic = std::exchange(at.topic_id, route.topic_id) != route.topic_id;
  if (at.start->kind() == OffsetSpec::Kind::timestamp && (!at.end || is_other_topic)) {
    at.end = at.end ? std::nullopt : std::optional(result.offset());
    return;
  }
  // No offset: no record has this timestamp or a later one.
  at.next = at.returned = result.has_offset() ? result.offset() : at.end.value_or(0);
  at.looked_up = std::exchange(at.start, std::nullopt);
}

/// Keeps the records of an answer and moves the position.
void Fetcher::accept(const Name& name, Position& at, const v1::FetchPartitionResult& result, const Route& route) {
  at.due = {};
  at.backoff.reset();
  at.hindrance.end();
  const auto looked_up = std::exchange(at.looked_up, std::nullopt);
  if (!at.topic_id.empty() && at.topic_id != route.topic_id) {
    // The topic was created again between look-up and fetch, or the look-up used the id of an earlier topic.
    if (looked_up) return look_up(at, *looked_up);
    // Offset and epoch are those of the deleted topic.
    if (config_.reset != ResetPolicy::error) return reset(at);
    errors_.push_back(std::make_exception_ptr(
        Error(make_failure("reading " + name.first + "/" + std::to_string(name.second), v1::ERROR_CODE_OFFSET_OUT_OF_RANGE,
                           "the topic was deleted and created again, and ResetPolicy::error is set"))));
    return;
  }
  at.topic_id = route.topic_id;
  if (result.has_diverging_epoch()) {
    const auto& diverging = result.diverging_epoch();
    at.epoch = diverging.epoch();
    // If no record that was read was removed, nothing is reported; the next fetch sends the diverging epoch.
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
    at.epoch = route.leader_epoch;
  }
}

void Fetcher::on_failure(const Name& name, Position& at, const Failure& failure) {
  if (failure.code == v1::ERROR_CODE_OFFSET_OUT_OF_RANGE && config_.reset != ResetPolicy::error) return reset(at);
  if (!failure.retriable) {
    errors_.push_back(std::make_exception_ptr(Error(failure)));
    return;
  }
  cluster_->learn(failure, name.first, name.second);
  at.due = Clock::now() + std::max(failure.retry_after, at.backoff.next());
  at.hindrance.note(failure, Clock::now());
  if (auto lasting = at.hindrance.lasting(patience_, Clock::now())) {
    lasting->operation = "reading " + name.first + "/" + std::to_string(name.second);
    errors_.push_back(std::make_exception_ptr(Error(std::move(*lasting))));
    at.hindrance.end();
  }
}

/// Looks the position up again: the earliest or the latest offset, by the reset policy.
void Fetcher::reset(Position& at) {
  look_up(at, config_.reset == ResetPolicy::latest ? OffsetSpec::latest() : OffsetSpec::earliest());
}

void Fetcher::look_up(Position& at, OffsetSpec start) {
  at.start = start;
  at.end.reset();
  at.epoch.reset();
  at.topic_id.clear();
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
