// The implementation of GroupConsumer: polls records, and joins the group again after rebalances and lost memberships.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fetcher.hpp"
#include "groups/commits.hpp"
#include "groups/group.hpp"
#include "paceline/group_consumer.hpp"

namespace paceline::detail {

/// Not safe for concurrent use. Background threads send heartbeats, join, and commit offsets.
class GroupReader {
public:
  GroupReader(const std::shared_ptr<Cluster>& cluster, GroupConfig config);
  ~GroupReader();

  void subscribe(std::vector<std::string> topics, RebalanceListener listener);
  std::vector<ConsumedRecord> poll(const Context& context, std::size_t max_records);
  void commit(const Context& context, const Offsets& offsets);
  void close(const Context& context);

  /// Returns the positions after all records that polls have returned.
  Offsets consumed() const { return fetcher_.consumed(); }
  std::vector<TopicPartition> assignment() const { return {assigned_.begin(), assigned_.end()}; }
  void seek(const TopicPartition& at, std::int64_t offset);
  /// Throws std::logic_error while a function of the listener runs.
  void refuse_in_listener(const std::string& call) const;
  const Fetcher& fetcher() const { return fetcher_; }
  Group& group() { return group_; }

private:
  void take_part();
  void start_join();
  void end_join();
  void begin(Joined joined);
  void give_up_partitions();
  void notify(std::function<void(const RebalanceListener::Partitions&)> function);
  void drop_partitions();
  void commit_automatically(const Context& context);
  TimePoint commit_when_due(TimePoint deadline);

  Fetcher fetcher_;
  Group group_;
  std::set<std::string> topics_;
  RebalanceListener listener_;
  /// Whether the member has joined with these topics.
  bool has_joined_ = false;
  bool is_notifying_ = false;
  std::set<TopicPartition> assigned_;
  TimePoint next_commit_{};
  /// The join in progress; it outlasts the poll that started it, and a later poll takes its result.
  std::future<Joined> joining_;
  // The threads are declared last, so that they end before the members that they use are destroyed.
  Commits commits_;
  std::jthread heartbeats_;
  std::jthread watcher_;
  std::jthread joiner_;
};

}  // namespace paceline::detail
