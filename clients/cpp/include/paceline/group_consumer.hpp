#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/consumer.hpp"
#include "paceline/options.hpp"
#include "paceline/record.hpp"

namespace paceline {

namespace detail {
class GroupReader;
}

struct TopicPartition {
  std::string topic{};
  std::int32_t partition = 0;

  auto operator<=>(const TopicPartition&) const = default;
};

/// A position that a group has committed, or that a program commits.
struct CommittedOffset {
  /// The next offset to read: that of the last record read, plus 1.
  std::int64_t offset = 0;
  /// A note for people.
  std::string metadata{};
  /// Leader epoch of the last record read; nothing when it is not known.
  std::optional<std::int32_t> leader_epoch{};

  bool operator==(const CommittedOffset&) const = default;
};

using Offsets = std::map<TopicPartition, CommittedOffset>;

/// A rule by which the leader of a group assigns partitions. All members of a group need one in common; clients of other
/// languages know the same two.
enum class Assignor {
  /// A run of consecutive partitions of each topic to each member. Members with the same topics read the same partition
  /// numbers of each.
  range,
  /// The partitions of all topics in turn, one to each member.
  round_robin
};

/// Returns the name that members of all languages use: "range" or "roundrobin".
std::string_view assignor_name(Assignor assignor);
/// Returns the assignor with a name. Throws std::invalid_argument for another name.
Assignor assignor_named(std::string_view name);

/// How a member of a consumer group reads and commits.
struct GroupConfig {
  /// Name of the group.
  std::string group_id{};
  /// Makes this a static member (KIP-345): it keeps its partitions when its process restarts within the session timeout.
  /// Unique in the group; empty for a dynamic member.
  std::string instance_id{};
  /// Name of the program, for people; it begins the member id.
  std::string client_id = "paceline-cpp";
  /// The group continues without this member when its heartbeats stay away for so long.
  std::chrono::milliseconds session_timeout{45'000};
  /// Pause between heartbeats.
  std::chrono::milliseconds heartbeat_interval{3'000};
  /// The member leaves the group when the program does not poll for so long.
  std::chrono::milliseconds max_poll_interval{300'000};
  /// Pause between automatic commits of the records that earlier polls returned. Nothing: the program commits.
  std::optional<std::chrono::milliseconds> auto_commit = std::chrono::milliseconds(5'000);
  /// Assignors, the best first; all members of a group need one in common.
  std::vector<Assignor> assignors{Assignor::range};
  /// How often the leader of the group looks for new partitions.
  std::chrono::milliseconds metadata_max_age{300'000};
  /// How records are fetched. `reset` also says where a partition begins for which the group has committed no offset.
  ConsumerConfig consumer{};
};

/// Receives the rebalances of a group, in poll and close, on their thread. Empty functions are not called, and no function is
/// called without partitions. Poll and close throw std::logic_error in a function.
struct RebalanceListener {
  using Partitions = std::vector<TopicPartition>;

  /// The partitions are read from now on.
  std::function<void(const Partitions&)> on_assigned{};
  /// The partitions go to other members. Their offsets can be committed in the call.
  std::function<void(const Partitions&)> on_revoked{};
  /// The membership was lost, and other members may have the partitions already. Their offsets cannot be committed.
  std::function<void(const Partitions&)> on_lost{};
};

/// A member of a consumer group: reads the partitions that the group gives it, from the offsets that the group has
/// committed. Use it from one thread; a stop token ends a poll from another.
///
/// Poll it again and again; a thread of its own sends heartbeats. The destructor ends that thread and leaves the group
/// without a commit; close commits, too.
class GroupConsumer {
public:
  /// Throws std::invalid_argument for a config that cannot work.
  GroupConsumer(std::shared_ptr<detail::Cluster> cluster, GroupConfig config);
  ~GroupConsumer();
  GroupConsumer(GroupConsumer&&) noexcept;
  GroupConsumer& operator=(GroupConsumer&&) noexcept;

  /// Subscribes to these topics, in the place of those before. The next poll joins the group.
  void subscribe(std::vector<std::string> topics, RebalanceListener listener = {});

  /// Waits until there are records or the time ends; then it returns none. Takes part in rebalances meanwhile. Returns at
  /// most max_records and keeps the others for the next poll.
  ///
  /// Throws Error with FENCED_INSTANCE_ID when another process has taken over the instance id, as every later poll does.
  /// After other errors the consumer can be polled further: a coordinator that was not reached within 30 seconds,
  /// settings that the coordinator refuses (INVALID_SESSION_TIMEOUT, INCONSISTENT_GROUP_PROTOCOL, ...), OFFSET_OUT_OF_RANGE
  /// for ResetPolicy::error, and what Consumer::poll throws. std::logic_error without topics.
  std::vector<ConsumedRecord> poll(std::chrono::milliseconds timeout, std::stop_token stop = {},
                                   std::size_t max_records = std::numeric_limits<std::size_t>::max());

  /// Commits the positions after all records that polls have returned, and waits.
  ///
  /// Throws CommitFailedError when the group has rebalanced without this member, Error with REBALANCE_IN_PROGRESS while it
  /// rebalances (poll, then commit what is still assigned), and Error with other codes when the time ends.
  void commit(const CallOptions& options = {});
  /// Commits these offsets, and waits. Throws as commit does.
  void commit(const Offsets& offsets, const CallOptions& options = {});
  /// Returns the committed offsets of partitions, of those for which the group has committed one. Throws Error.
  Offsets committed(const std::vector<TopicPartition>& partitions, const CallOptions& options = {}) const;

  /// Returns the partitions that this member reads, sorted.
  std::vector<TopicPartition> assignment() const;
  /// Returns the offset of the next record of a partition that poll returns; nothing while it is not known.
  std::optional<std::int64_t> position(const std::string& topic, std::int32_t partition) const;
  /// Continues a partition of the assignment at an offset. Throws std::invalid_argument for another partition.
  void seek(const std::string& topic, std::int32_t partition, std::int64_t offset);
  /// Returns the member id that the coordinator gave; empty before the first join.
  std::string member_id() const;
  /// Returns the generation of the group that this member is in; nothing while it is in none.
  std::optional<std::int32_t> generation() const;

  /// Commits, if commits are automatic, calls on_revoked and leaves the group. A static member does not leave: it can come
  /// back within its session timeout. Throws the error of the commit; the consumer has ended nevertheless.
  void close(const CallOptions& options = {});

private:
  detail::GroupReader& reader() const;

  std::unique_ptr<detail::GroupReader> reader_;
};

}  // namespace paceline
