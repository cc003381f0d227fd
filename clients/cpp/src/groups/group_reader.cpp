#include "groups/group_reader.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "text.hpp"

namespace paceline::detail {

namespace {

constexpr milliseconds leave_timeout{2'000};
/// Assigned partitions exist, because the leader of the group has counted them: a broker without them is behind.
constexpr Patience assigned_patience{.missing = std::nullopt};

/// Marks the time that the program spends in a poll.
class Polling {
public:
  explicit Polling(Group& group) : group_(group) { mark(true); }
  ~Polling() { mark(false); }
  Polling(const Polling&) = delete;
  Polling& operator=(const Polling&) = delete;

private:
  void mark(bool is_polling) {
    group_.with_member([&](Member& member) { member.set_polling(is_polling, Clock::now()); });
  }
  Group& group_;
};

}  // namespace

GroupReader::GroupReader(const std::shared_ptr<Cluster>& cluster, GroupConfig config)
    : fetcher_(cluster, config.consumer, assigned_patience),
      group_(cluster, std::move(config), [this] { fetcher_.wake(); }),
      commits_(group_) {}

GroupReader::~GroupReader() {
  end_join();
  try {
    group_.leave(Context(CallOptions{leave_timeout, {}}));
  } catch (const std::exception&) {
    // The session timeout ends the membership.
  }
}

void GroupReader::subscribe(std::vector<std::string> topics, RebalanceListener listener) {
  for (const auto& topic : topics) check_utf8("the topic", topic);
  topics_ = {topics.begin(), topics.end()};
  listener_ = std::move(listener);
  has_joined_ = false;
  group_.rejoin();
}

std::vector<ConsumedRecord> GroupReader::poll(const Context& context, std::size_t max_records) {
  refuse_in_listener("poll");
  if (topics_.empty()) throw std::logic_error("the consumer has no topics: call subscribe first");
  if (!heartbeats_.joinable()) {
    heartbeats_ = std::jthread([this](const std::stop_token& stop) { group_.beat(stop); });
    watcher_ = std::jthread([this](const std::stop_token& stop) { group_.watch_topics(stop); });
  }
  const Polling polling(group_);
  while (true) {
    if (const auto fatal = group_.with_member([](Member& member) { return member.fatal(); })) throw Error(*fatal);
    take_part();
    const auto until = commit_when_due(context.deadline());
    auto records = fetcher_.poll(Context(until, context.stop()), max_records);
    if (!records.empty() || context.expired()) return records;
  }
}

/// Starts or completes a join if that is possible without waiting for other members.
void GroupReader::take_part() {
  if (!joining_.valid() && group_.with_member([](Member& member) { return member.needs_join(); })) {
    give_up_partitions();
    start_join();
  }
  if (!joining_.valid() || joining_.wait_for(milliseconds(0)) != std::future_status::ready) return;
  auto joined = joining_.get();
  // Other members may have the partitions already.
  const bool is_lost = group_.with_member([](Member& member) { return member.take_lost(); });
  if (is_lost)
    start_join();
  else
    begin(std::move(joined));
}

void GroupReader::start_join() {
  std::packaged_task<Joined(std::stop_token)> task(
      [this, topics = topics_, is_first = !has_joined_](const std::stop_token& stop) {
        if (is_first) group_.check_topics(topics, stop);
        return group_.join(topics, stop);
      });
  joining_ = task.get_future();
  joiner_ = std::jthread([this, task = std::move(task)](std::stop_token stop) mutable {
    task(std::move(stop));
    group_.wake();
  });
}

void GroupReader::end_join() {
  joiner_ = {};
  joining_ = {};
}

/// Reads the partitions of a new generation.
void GroupReader::begin(Joined joined) {
  if (joined.topics != topics_)
    group_.rejoin();
  else
    has_joined_ = true;
  const auto& config = group_.config();
  for (const auto& at : joined.partitions) {
    const auto committed = joined.committed.find(at);
    if (committed != joined.committed.end())
      fetcher_.resume(at.topic, at.partition, committed->second.offset, committed->second.leader_epoch);
    else if (config.consumer.reset != ResetPolicy::error)
      fetcher_.assign(at.topic, at.partition,
                      config.consumer.reset == ResetPolicy::latest ? OffsetSpec::latest() : OffsetSpec::earliest(), 0);
    else
      fetcher_.fail_next_poll(
          make_failure("reading " + at.topic + "/" + std::to_string(at.partition), v1::ERROR_CODE_OFFSET_OUT_OF_RANGE,
                       "group " + config.group_id +
                           " has committed no offset, and ResetPolicy::error is set: call seek"));
  }
  assigned_ = {joined.partitions.begin(), joined.partitions.end()};
  next_commit_ = Clock::now() + config.auto_commit.value_or(milliseconds(0));
  notify(listener_.on_assigned);
}

/// Commits and revokes the partitions before a JoinGroup: the next generation may give them to other members.
void GroupReader::give_up_partitions() {
  const bool is_lost = group_.with_member([](Member& member) { return member.take_lost(); });
  if (assigned_.empty()) return;
  if (!is_lost) {
    try {
      commit_automatically(Context(CallOptions{group_.config().session_timeout / 2, {}}));
    } catch (const Error&) {
      // The next owner of the partitions reads these records again.
    }
  }
  try {
    notify(is_lost ? listener_.on_lost : listener_.on_revoked);
  } catch (...) {
    drop_partitions();
    throw;
  }
  drop_partitions();
}

/// Calls a function of the listener. The function is a copy: it may subscribe, which replaces the listener.
void GroupReader::notify(std::function<void(const RebalanceListener::Partitions&)> function) {
  if (!function || assigned_.empty()) return;
  is_notifying_ = true;
  try {
    function(assignment());
  } catch (...) {
    is_notifying_ = false;
    throw;
  }
  is_notifying_ = false;
}

void GroupReader::refuse_in_listener(const std::string& call) const {
  if (is_notifying_) throw std::logic_error(call + " was called inside a rebalance listener: call it after poll has returned");
}

void GroupReader::drop_partitions() {
  for (const auto& at : std::exchange(assigned_, {})) fetcher_.unassign(at.topic, at.partition);
}

void GroupReader::commit(const Context& context, const Offsets& offsets) {
  if (!offsets.empty()) commits_.sync(context, offsets);
}

void GroupReader::commit_automatically(const Context& context) {
  const bool is_member = group_.with_member([](Member& member) { return member.generation().has_value(); });
  if (group_.config().auto_commit && is_member) commit(context, consumed());
}

/// Starts an automatic commit if it is due. Returns when the next commit is due, or the deadline if that is earlier.
TimePoint GroupReader::commit_when_due(TimePoint deadline) {
  const auto pause = group_.config().auto_commit;
  const bool is_member = group_.with_member([](Member& member) { return member.generation().has_value(); });
  if (!pause || assigned_.empty() || !is_member) return deadline;
  if (Clock::now() >= next_commit_) {
    next_commit_ = Clock::now() + std::max(*pause, milliseconds(1));
    if (!commits_.is_busy()) {
      if (auto offsets = consumed(); !offsets.empty()) commits_.send(std::move(offsets));
    }
  }
  return std::min(deadline, next_commit_);
}

void GroupReader::seek(const TopicPartition& at, std::int64_t offset) {
  if (!assigned_.contains(at))
    throw std::invalid_argument(at.topic + "/" + std::to_string(at.partition) + " is not assigned to this consumer");
  fetcher_.assign(at.topic, at.partition, std::nullopt, offset);
}

void GroupReader::close(const Context& context) {
  end_join();
  std::exception_ptr problem;
  const auto attempt = [&](auto&& step) {
    try {
      step();
    } catch (...) {
      if (!problem) problem = std::current_exception();
    }
  };
  const bool is_lost = group_.with_member([](Member& member) { return member.take_lost(); });
  // Half of the time remains for LeaveGroup: without it the other members wait for the session timeout.
  attempt([&] { commit_automatically(context.within(context.remaining() / 2)); });
  attempt([&] { notify(is_lost ? listener_.on_lost : listener_.on_revoked); });
  drop_partitions();
  attempt([&] {
    try {
      group_.leave(context.within(leave_timeout));
    } catch (const Error&) {
      // The session timeout ends the membership.
    }
  });
  if (problem) std::rethrow_exception(problem);
}

}  // namespace paceline::detail

namespace paceline {

GroupConsumer::GroupConsumer(std::shared_ptr<detail::Cluster> cluster, GroupConfig config)
    : reader_(std::make_unique<detail::GroupReader>(cluster, std::move(config))) {}
GroupConsumer::~GroupConsumer() = default;
GroupConsumer::GroupConsumer(GroupConsumer&&) noexcept = default;
GroupConsumer& GroupConsumer::operator=(GroupConsumer&&) noexcept = default;

detail::GroupReader& GroupConsumer::reader() const {
  if (!reader_) throw std::logic_error("the consumer is closed");
  return *reader_;
}

void GroupConsumer::subscribe(std::vector<std::string> topics, RebalanceListener listener) {
  reader().subscribe(std::move(topics), std::move(listener));
}
std::vector<ConsumedRecord> GroupConsumer::poll(std::chrono::milliseconds timeout, std::stop_token stop,
                                                std::size_t max_records) {
  return reader().poll(detail::Context(CallOptions{timeout, std::move(stop)}), max_records);
}
void GroupConsumer::commit(const CallOptions& options) { reader().commit(detail::Context(options), reader().consumed()); }
void GroupConsumer::commit(const Offsets& offsets, const CallOptions& options) {
  reader().commit(detail::Context(options), offsets);
}
Offsets GroupConsumer::committed(const std::vector<TopicPartition>& partitions, const CallOptions& options) const {
  return reader().group().fetch_committed(detail::Context(options), partitions);
}
std::vector<TopicPartition> GroupConsumer::assignment() const { return reader().assignment(); }
std::optional<std::int64_t> GroupConsumer::position(const std::string& topic, std::int32_t partition) const {
  return reader().fetcher().position(topic, partition);
}
void GroupConsumer::seek(const std::string& topic, std::int32_t partition, std::int64_t offset) {
  reader().seek({topic, partition}, offset);
}
std::string GroupConsumer::member_id() const {
  return reader().group().with_member([](detail::Member& member) { return member.id(); });
}
std::optional<std::int32_t> GroupConsumer::generation() const {
  return reader().group().with_member([](detail::Member& member) { return member.generation(); });
}
void GroupConsumer::close(const CallOptions& options) {
  if (!reader_) return;
  reader_->refuse_in_listener("close");
  try {
    // The listener may commit meanwhile.
    reader_->close(detail::Context(options));
  } catch (...) {
    reader_.reset();
    throw;
  }
  reader_.reset();
}

}  // namespace paceline
