#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "paceline/consumer.hpp"
#include "paceline/group_consumer.hpp"
#include "paceline/options.hpp"
#include "paceline/producer.hpp"

namespace paceline {

namespace v1 {
class EventBatch;
}

/// A topic to create.
struct NewTopic {
  std::string name{};
  /// 0: the default of the cluster.
  std::int32_t partitions = 0;
  /// 0: the default of the cluster.
  std::int32_t replication_factor = 0;
  /// For example {"min.insync.replicas", "2"}.
  std::map<std::string, std::string> configs{};
};

struct PartitionDescription {
  std::int32_t partition = 0;
  /// std::nullopt while the partition has no leader.
  std::optional<std::int32_t> leader{};
  std::int32_t leader_epoch = 0;
  std::vector<std::int32_t> replicas{};
  std::vector<std::int32_t> isr{};
};

struct TopicDescription {
  std::string name{};
  std::string topic_id{};
  std::vector<PartitionDescription> partitions{};
};

struct BrokerDescription {
  std::int32_t id = 0;
  std::string address{};
  std::string rack{};
};

struct ClusterDescription {
  std::string cluster_id{};
  std::vector<BrokerDescription> brokers{};
  std::optional<std::int32_t> controller_id{};
  /// host:port of the active controller; empty when there is none.
  std::string controller_address{};
};

/// A client of one cluster. Safe for concurrent use. Producers and consumers share the connections and the metadata of the
/// client, and may outlive the client.
///
/// Every call with options throws Error, or CancelledError when a stop was requested. A create_topic or delete_topic whose
/// outcome is unknown is not sent again: call describe_topic to find out whether the change was made.
class Client {
public:
  /// Creates a client that connects with its first call. Throws std::invalid_argument for an invalid config.
  explicit Client(ClientConfig config);

  Producer make_producer(ProducerConfig config = {}) const;
  Consumer make_consumer(ConsumerConfig config = {}) const;
  /// Creates a member of a consumer group; the member joins with the first poll after subscribe. Throws
  /// std::invalid_argument for an invalid config.
  GroupConsumer make_group_consumer(GroupConfig config) const;

  /// Creates a topic and returns its id when every partition has a leader.
  std::string create_topic(const NewTopic& topic, const CallOptions& options = {});
  /// Deletes a topic and returns when it is deleted.
  void delete_topic(const std::string& name, const CallOptions& options = {});
  TopicDescription describe_topic(const std::string& name, const CallOptions& options = {});
  ClusterDescription describe_cluster(const CallOptions& options = {});
  /// Returns an offset; std::nullopt when all records are older than the requested time.
  std::optional<std::int64_t> list_offset(const std::string& topic, std::int32_t partition, OffsetSpec at,
                                          const CallOptions& options = {});

  /// Calls handle for every batch of cluster events from now on, until a stop is requested or handle throws. When the
  /// connection breaks, connects again and continues after the last batch. In a batch with a gap, events before the batch
  /// are missing. To read a batch, include paceline/v1/metadata_service.pb.h.
  void watch_events(const std::function<void(const v1::EventBatch&)>& handle, std::stop_token stop);

private:
  std::shared_ptr<detail::Cluster> cluster_;
};

}  // namespace paceline
