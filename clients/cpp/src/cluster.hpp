// The connections and metadata of a client: brokers, leaders and partition counts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/security/credentials.h>

#include "context.hpp"
#include "paceline/consumer.hpp"
#include "paceline/options.hpp"
#include "paceline/v1/log_service.grpc.pb.h"
#include "paceline/v1/metadata_service.grpc.pb.h"

namespace paceline::detail {

/// The leader of a partition, which serves the calls about it.
struct Route {
  std::string address;
  std::int32_t leader_epoch = 0;
  std::string topic_id;
};

/// Safe for concurrent use. No remote call is made while the mutex is held.
class Cluster {
public:
  explicit Cluster(ClientConfig config, milliseconds metadata_age = std::chrono::minutes(5),
                   milliseconds idle_channel_age = std::chrono::hours(1));
  ~Cluster();

  milliseconds request_timeout() const { return config_.request_timeout; }
  std::shared_ptr<grpc::Channel> channel(const std::string& address);

  /// Reads the brokers and the active controller. Throws Error.
  v1::DescribeClusterResponse describe(const Context& context);
  v1::TopicDescription describe_topic(const Context& context, const std::string& topic);
  /// Returns the addresses of all brokers, in random order. Throws Error.
  std::vector<std::string> brokers(const Context& context);
  /// Returns the partition counts of those topics that exist. Asks up to three processes, because a broker that is cut off
  /// from the cluster knows neither new topics nor added partitions. Throws Error when none of them answers.
  std::map<std::string, std::int32_t> partition_counts(const Context& context, const std::set<std::string>& topics);
  /// Reads the leaders of a topic. Throws Error.
  void refresh(const Context& context, const std::string& topic);

  /// Returns the number of partitions of a topic; asks a broker if it is not known or older than `metadata_age`. Throws
  /// Error, with UNKNOWN_TOPIC_OR_PARTITION when brokers have not known the topic for `missing_topic_patience`.
  std::int32_t partition_count(const Context& context, const std::string& topic);
  /// Returns whether the metadata of a topic is older than `metadata_age`, and counts it as new: only one of concurrent
  /// callers gets true and asks a broker again.
  bool take_old(const std::string& topic);
  /// Returns the id of a topic if it is known, otherwise an empty text; asks no broker.
  std::string known_topic_id(const std::string& topic) const;
  /// Returns the route if it is known; asks no broker.
  std::optional<Route> known_route(const std::string& topic, std::int32_t partition) const;
  /// Returns the failure of a partition that has no route although its topic was just refreshed.
  Failure missing_route(const std::string& topic, std::int32_t partition) const;
  /// Returns the route; asks a broker if it is not known. Throws Error.
  Route route(const Context& context, const std::string& topic, std::int32_t partition);

  /// Takes the leader from the hint of a failure, or forgets the failed leader. Returns whether a hint was used.
  bool learn(const Failure& failure, const std::string& topic, std::int32_t partition);

  /// Returns the address of the active controller as last learned, empty when there is none.
  std::string controller() const;

  std::optional<std::int64_t> list_offset(const Context& context, const std::string& topic, std::int32_t partition,
                                          OffsetSpec at);
  /// Returns the part of a ListOffsets request about one partition.
  static v1::ListOffsetsPartition offset_query(const std::string& topic, std::int32_t partition, OffsetSpec at,
                                               std::int32_t leader_epoch);

private:
  struct Connection {
    std::shared_ptr<grpc::Channel> channel;
    TimePoint used;
  };
  struct Leader {
    /// Empty while the partition has no leader, and after a call to the known leader has failed.
    std::string address;
    std::int32_t epoch = 0;
  };
  struct Topic {
    std::string id;
    std::int32_t count = 0;
    std::map<std::int32_t, Leader> leaders;
    TimePoint learned;
  };

  template <class Ask>
  void ask_some(const Context& context, int wanted, Ask&& ask);
  template <class Ask>
  void ask_any(const Context& context, Ask&& ask);
  v1::DescribeClusterResponse describe_at(const Context& context, const std::string& address);
  std::map<std::string, std::pair<std::string, std::int32_t>> count_partitions_at(
      const Context& context, const std::string& address, const std::set<std::string>& topics);
  v1::TopicDescription describe_topic_at(const Context& context, const std::string& address, const std::string& topic);

  const ClientConfig config_;
  const milliseconds metadata_age_;
  const milliseconds idle_channel_age_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;

  mutable std::mutex mutex_;
  std::map<std::string, Connection> connections_;
  std::map<std::int32_t, std::string> brokers_;
  std::map<std::string, Topic> topics_;
  /// Topic id and largest partition count that `partition_counts` has returned, by topic.
  std::map<std::string, std::pair<std::string, std::int32_t>> counted_;
  std::string controller_;

  /// A queue without events, on which `waiter_` waits. gRPC 1.51 makes progress on a reconnect only while a thread waits for
  /// events, and calls fail immediately until then: without the waiting thread a TLS handshake would never finish.
  grpc::CompletionQueue no_events_;
  std::jthread waiter_;
};

}  // namespace paceline::detail
