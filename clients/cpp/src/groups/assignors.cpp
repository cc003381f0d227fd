#include "groups/assignors.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace paceline {

namespace {

constexpr std::array all{Assignor::range, Assignor::round_robin};

using detail::Assignments;
using detail::PartitionCounts;
using detail::Subscriber;

void assign_ranges(const std::vector<Subscriber>& members, const PartitionCounts& counts, Assignments& assignments) {
  for (const auto& [topic, count] : counts) {
    std::vector<const Subscriber*> takers;
    for (const auto& member : members)
      if (member.topics.contains(topic)) takers.push_back(&member);
    std::int32_t begin = 0;
    for (std::size_t place = 0; place < takers.size(); ++place) {
      const auto taker_count = static_cast<std::int32_t>(takers.size());
      const bool has_one_more = static_cast<std::int32_t>(place) < count % taker_count;
      const auto end = begin + count / taker_count + (has_one_more ? 1 : 0);
      for (; begin < end; ++begin) assignments[takers[place]->member_id].push_back({topic, begin});
    }
  }
}

void assign_in_turn(const std::vector<Subscriber>& members, const PartitionCounts& counts, Assignments& assignments) {
  std::size_t turn = 0;
  for (const auto& [topic, count] : counts) {
    const auto subscribes = [&topic = topic](const Subscriber& member) { return member.topics.contains(topic); };
    if (std::none_of(members.begin(), members.end(), subscribes)) continue;
    for (std::int32_t partition = 0; partition < count; ++partition) {
      while (!subscribes(members[turn % members.size()])) ++turn;
      assignments[members[turn % members.size()].member_id].push_back({topic, partition});
      ++turn;
    }
  }
}

}  // namespace

std::string_view assignor_name(Assignor assignor) { return assignor == Assignor::range ? "range" : "roundrobin"; }

Assignor assignor_named(std::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](Assignor one) { return assignor_name(one) == name; });
  if (found == all.end())
    throw std::invalid_argument("the assignor \"" + std::string(name) + "\" is not known; there are range, roundrobin");
  return *found;
}

detail::Assignments detail::assign(Assignor assignor, std::vector<Subscriber> members, const PartitionCounts& counts) {
  // Static members by their instance id, then dynamic members by their member id.
  const auto order = [](const Subscriber& member) {
    const bool is_dynamic = member.instance_id.empty();
    return std::pair(is_dynamic, std::string_view(is_dynamic ? member.member_id : member.instance_id));
  };
  std::sort(members.begin(), members.end(),
            [&](const Subscriber& a, const Subscriber& b) { return order(a) < order(b); });
  Assignments assignments;
  for (const auto& member : members) assignments[member.member_id];
  (assignor == Assignor::range ? assign_ranges : assign_in_turn)(members, counts, assignments);
  return assignments;
}

}  // namespace paceline
