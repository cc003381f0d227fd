// The assignors range and roundrobin, with Kafka's rules and without I/O.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "paceline/group_consumer.hpp"

namespace paceline::detail {

/// A member of the group with its subscription.
struct Subscriber {
  std::string member_id{};
  std::string instance_id{};
  std::set<std::string> topics{};
};

/// Number of partitions by topic.
using PartitionCounts = std::map<std::string, std::int32_t>;
/// Partitions by member id; a member without partitions has an empty list.
using Assignments = std::map<std::string, std::vector<TopicPartition>>;

/// Assigns the partitions of `counts` to the members that subscribe to their topics.
Assignments assign(Assignor assignor, std::vector<Subscriber> members, const PartitionCounts& counts);

}  // namespace paceline::detail
