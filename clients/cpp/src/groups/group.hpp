// What the poll, the thread that joins, the heartbeats and the commits of a member share, and the calls that they make.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "cluster.hpp"
#include "groups/assignors.hpp"
#include "groups/coordinator.hpp"
#include "groups/member.hpp"
#include "paceline/group_consumer.hpp"

namespace paceline::detail {

/// The partitions of a member in a new generation.
struct Joined {
  std::vector<TopicPartition> partitions{};
  Offsets committed{};
  /// The topics that the member has joined with.
  std::set<std::string> topics{};
};

/// Safe for concurrent use.
class Group {
public:
  /// Calls `wake` when the poll has something to do. Throws std::invalid_argument for a config that cannot work.
  Group(std::shared_ptr<Cluster> cluster, GroupConfig config, std::function<void()> wake);

  const GroupConfig& config() const { return config_; }

  /// Calls a function with the member, under the mutex.
  template <class Use>
  auto with_member(Use&& use) {
    const std::lock_guard lock(mutex_);
    return std::forward<Use>(use)(member_);
  }
  void wake() const { wake_(); }
  /// Has the next poll join again.
  void rejoin();

  /// Joins until the member has its partitions. Throws the last Error when a failure lasts longer than 30 seconds, or when
  /// another attempt cannot mend it; CancelledError when a stop was requested.
  Joined join(const std::set<std::string>& topics, const std::stop_token& stop);
  /// Tells the coordinator that a dynamic member leaves. Throws Error.
  void leave(const Context& context);
  void commit(const Context& context, const Offsets& offsets);
  Offsets fetch_committed(const Context& context, const std::vector<TopicPartition>& partitions);

  /// Sends heartbeats while the member is in a generation, and leaves the group when the program does not poll any more.
  void beat(const std::stop_token& stop);
  /// Has the group rebalance when the topics that this member assigned as the leader have other partitions by now.
  void watch_topics(const std::stop_token& stop);

private:
  v1::JoinGroupResponse join_group(const std::set<std::string>& topics, const std::stop_token& stop);
  std::vector<TopicPartition> sync_group(const v1::JoinGroupResponse& joined, const std::stop_token& stop);
  PartitionCounts assign(const v1::JoinGroupResponse& joined, v1::SyncGroupRequest& request, const std::stop_token& stop);
  void tell_leave(const Context& context, const std::string& member_id);
  void leave_idle(const std::stop_token& stop);
  void heartbeat(std::int32_t generation, const std::stop_token& stop);
  PartitionCounts assigned_by();

  const GroupConfig config_;
  const std::shared_ptr<Cluster> cluster_;
  const std::function<void()> wake_;
  Coordinator coordinator_;

  std::mutex mutex_;
  Member member_{Clock::now()};
  /// Partitions that this member assigned by, while it leads the group.
  PartitionCounts assigned_by_;
};

}  // namespace paceline::detail
