// The state of a member that polls, the joining thread, heartbeats and commits share, and their calls to the coordinator.
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
  /// The subscribed topics that the JoinGroup request named.
  std::set<std::string> topics{};
};

/// Safe for concurrent use.
class Group {
public:
  /// `wake` is called when the polling thread has work to do. Throws std::invalid_argument for an invalid config.
  Group(std::shared_ptr<Cluster> cluster, GroupConfig config, std::function<void()> wake);

  const GroupConfig& config() const { return config_; }

  /// Calls a function with the member, under the mutex.
  template <class Use>
  auto with_member(Use&& use) {
    const std::lock_guard lock(mutex_);
    return std::forward<Use>(use)(member_);
  }
  void wake() const { wake_(); }
  /// Makes the next poll join the group again.
  void rejoin();

  /// Checks that topics exist. Throws Error, with UNKNOWN_TOPIC_OR_PARTITION when brokers have not known a topic for
  /// `missing_topic_patience`; returns when brokers do not answer. Throws CancelledError when a stop was requested.
  void check_topics(const std::set<std::string>& topics, const std::stop_token& stop);
  /// Joins the group, with retries, until the member has its partitions. Throws the last Error when attempts have failed for
  /// 30 seconds or the error is not retriable, and CancelledError when a stop was requested.
  Joined join(const std::set<std::string>& topics, const std::stop_token& stop);
  /// Tells the coordinator that a dynamic member leaves. Throws Error.
  void leave(const Context& context);
  void commit(const Context& context, const Offsets& offsets);
  Offsets fetch_committed(const Context& context, const std::vector<TopicPartition>& partitions);

  /// Sends heartbeats while the member is in a generation, and leaves the group after max_poll_interval without a poll.
  void beat(const std::stop_token& stop);
  /// As the leader, makes the group rebalance when the partition count of an assigned topic has changed.
  void watch_topics(const std::stop_token& stop);

private:
  v1::JoinGroupResponse join_group(const std::set<std::string>& topics, const std::stop_token& stop);
  std::vector<TopicPartition> sync_group(const v1::JoinGroupResponse& joined, const std::stop_token& stop);
  PartitionCounts count_partitions(const v1::JoinGroupResponse& joined, const std::stop_token& stop);
  void assign(const v1::JoinGroupResponse& joined, const PartitionCounts& counts, v1::SyncGroupRequest& request);
  void commit_once(const Context& context, const std::string& operation, const v1::CommitOffsetsRequest& request);
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
  /// The partition counts of the topics of all members when this member joined as the leader; empty otherwise.
  PartitionCounts assigned_by_;
};

}  // namespace paceline::detail
