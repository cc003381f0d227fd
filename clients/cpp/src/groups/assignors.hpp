// Which member reads which partitions, with Kafka's names and rules. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "paceline/group_consumer.hpp"

namespace paceline::detail {

/// A member as the leader sees it.
struct Subscriber {
  std::string member_id{};
  std::string instance_id{};
  std::set<std::string> topics{};
};

/// Number of partitions by topic.
using PartitionCounts = std::map<std::string, std::int32_t>;
/// Partitions by member id; every member is in it.
using Assignments = std::map<std::string, std::vector<TopicPartition>>;

/// Assigns the partitions of the topics that exist.
Assignments assign(Assignor assignor, std::vector<Subscriber> members, const PartitionCounts& counts);

}  // namespace paceline::detail
