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

/// A position of a group in one partition, to commit or already committed.
struct CommittedOffset {
  /// The next offset to read: that of the last record read, plus 1.
  std::int64_t offset = 0;
  /// Free text, stored with the offset.
  std::string metadata{};
  /// Leader epoch of the last record read; nullopt when it is not known.
  std::optional<std::int32_t> leader_epoch{};

  bool operator==(const CommittedOffset&) const = default;
};

using Offsets = std::map<TopicPartition, CommittedOffset>;

/// The rule by which the leader of a group assigns partitions. The members of a group must have an assignor in common; the
/// clients of all languages have these two.
enum class Assignor {
  /// Assigns each member consecutive partitions of each topic. If all members subscribe to the same topics, a member gets
  /// the same partition numbers of all topics with equally many partitions.
  range,
  /// Assigns the partitions of all topics to the members in turn.
  round_robin
};

/// Returns the name that members of all languages use: "range" or "roundrobin".
std::string_view assignor_name(Assignor assignor);
/// Returns the assignor with this name. Throws std::invalid_argument for a name that no assignor has.
Assignor assignor_named(std::string_view name);

/// How a member of a consumer group reads and commits.
struct GroupConfig {
  /// Name of the group.
  std::string group_id{};
  /// Makes this a static member (KIP-345): it keeps its partitions when its process restarts within the session timeout.
  /// Unique in the group; empty for a dynamic member.
  std::string instance_id{};
  /// Name of the program; the coordinator uses it as the prefix of the member id.
  std::string client_id = "paceline-cpp";
  /// The coordinator removes this member when no heartbeat has arrived for this long.
  std::chrono::milliseconds session_timeout{45'000};
  /// Pause between heartbeats.
  std::chrono::milliseconds heartbeat_interval{3'000};
  /// The member leaves the group when the program has not polled for this long.
  std::chrono::milliseconds max_poll_interval{300'000};
  /// Interval of automatic commits of the positions after the records that polls have returned; nullopt: the program
  /// commits.
  std::optional<std::chrono::milliseconds> auto_commit = std::chrono::milliseconds(5'000);
  /// Assignors in order of preference; the members of a group must have one in common.
  std::vector<Assignor> assignors{Assignor::range};
  /// How often the leader of the group looks for new partitions.
  std::chrono::milliseconds metadata_max_age{300'000};
  /// Settings of fetches. `reset` also decides where the group begins to read a partition without a committed offset.
  ConsumerConfig consumer{};
};

/// Callbacks for rebalances. They run inside poll and close, on the thread of the caller. An empty function is skipped, and
/// no function is called with an empty list. A poll or close inside a callback throws std::logic_error.
struct RebalanceListener {
  using Partitions = std::vector<TopicPartition>;

  /// Called with the partitions that the next polls read.
  std::function<void(const Partitions&)> on_assigned{};
  /// Called before other members receive the partitions. The callback can still commit their offsets.
  std::function<void(const Partitions&)> on_revoked{};
  /// Called after the membership was lost: other members may own the partitions, and a commit of their offsets fails.
  std::function<void(const Partitions&)> on_lost{};
};

/// A member of a consumer group: reads the partitions that the group assigns to it, from the committed offsets. Not safe
/// for concurrent use; another thread can end a poll through its stop token.
///
/// Call poll in a loop; a background thread sends the heartbeats. close commits (if commits are automatic) and leaves the
/// group; the destructor leaves the group without a commit.
class GroupConsumer {
public:
  /// Throws std::invalid_argument for a missing group id or a setting that is out of range.
  GroupConsumer(std::shared_ptr<detail::Cluster> cluster, GroupConfig config);
  ~GroupConsumer();
  GroupConsumer(GroupConsumer&&) noexcept;
  GroupConsumer& operator=(GroupConsumer&&) noexcept;

  /// Replaces the subscription by these topics. The next poll joins the group.
  void subscribe(std::vector<std::string> topics, RebalanceListener listener = {});

  /// Takes part in rebalances, waits for records and returns at most max_records of them; the next poll returns the others.
  /// Returns an empty vector after the timeout.
  ///
  /// Throws CancelledError when a stop was requested, std::logic_error without a subscription, the errors of Consumer::poll,
  /// and Error with
  /// - FENCED_INSTANCE_ID when another process has taken over the instance id; every later poll throws it, too,
  /// - UNKNOWN_TOPIC_OR_PARTITION before the first join, when brokers have not known a topic for 5 seconds,
  /// - the last error of the coordinator when joining has failed for 30 seconds, or at once when it is not retriable
  ///   (INVALID_SESSION_TIMEOUT, INCONSISTENT_GROUP_PROTOCOL, ...),
  /// - OFFSET_OUT_OF_RANGE for a partition without a committed offset and ResetPolicy::error.
  /// After any error but FENCED_INSTANCE_ID the next poll tries again.
  std::vector<ConsumedRecord> poll(std::chrono::milliseconds timeout, std::stop_token stop = {},
                                   std::size_t max_records = std::numeric_limits<std::size_t>::max());

  /// Commits the positions after all records that polls have returned, and waits for the answer.
  ///
  /// Throws CommitFailedError when the group has rebalanced without this member, Error with REBALANCE_IN_PROGRESS during a
  /// rebalance (poll, then commit the partitions that are still assigned), and Error with the last cause after the timeout.
  void commit(const CallOptions& options = {});
  /// Commits these offsets and waits for the answer. Throws the same errors.
  void commit(const Offsets& offsets, const CallOptions& options = {});
  /// Returns the committed offsets; a partition without a committed offset is left out. Throws Error.
  Offsets committed(const std::vector<TopicPartition>& partitions, const CallOptions& options = {}) const;

  /// Returns the partitions that this member reads, sorted.
  std::vector<TopicPartition> assignment() const;
  /// Returns the offset of the next record that poll will return for a partition; nullopt before it is known.
  std::optional<std::int64_t> position(const std::string& topic, std::int32_t partition) const;
  /// Moves the position of an assigned partition to an offset. Throws std::invalid_argument for any other partition.
  void seek(const std::string& topic, std::int32_t partition, std::int64_t offset);
  /// Returns the member id that the coordinator has assigned; empty before the first join.
  std::string member_id() const;
  /// Returns the current generation of the group; nullopt while this is not a member.
  std::optional<std::int32_t> generation() const;

  /// Commits (if commits are automatic), calls on_revoked, leaves the group and ends the consumer. A static member does not
  /// leave: after a restart within its session timeout it has the same partitions. Throws the error of the commit or the listener,
  /// after the consumer has ended.
  void close(const CallOptions& options = {});

private:
  detail::GroupReader& reader() const;

  std::unique_ptr<detail::GroupReader> reader_;
};

}  // namespace paceline
