#include "paceline/partitioner.hpp"

#include <cstddef>
#include <stdexcept>

namespace paceline {

std::uint32_t murmur2(std::string_view data) noexcept {
  constexpr std::uint32_t multiplier = 0x5bd1e995;
  const auto byte = [&](std::size_t at) { return static_cast<std::uint32_t>(static_cast<unsigned char>(data[at])); };
  std::uint32_t hash = 0x9747b28cU ^ static_cast<std::uint32_t>(data.size());
  std::size_t at = 0;
  for (; data.size() - at >= 4; at += 4) {
    std::uint32_t word = byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24;
    word *= multiplier;
    word ^= word >> 24;
    hash = (hash * multiplier) ^ (word * multiplier);
  }
  if (at < data.size()) {
    std::uint32_t rest = 0;
    for (std::size_t i = 0; at + i < data.size(); ++i) rest |= byte(at + i) << (8 * i);
    hash = (hash ^ rest) * multiplier;
  }
  hash = (hash ^ hash >> 13) * multiplier;
  return hash ^ hash >> 15;
}

std::int32_t partition_for_key(std::string_view key, std::int32_t partition_count) {
  if (partition_count < 1) throw std::invalid_argument("partition_count must be at least 1");
  return static_cast<std::int32_t>((murmur2(key) & 0x7fffffffU) % static_cast<std::uint32_t>(partition_count));
}

}  // namespace paceline
