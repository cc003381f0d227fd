#pragma once

#include <cstdint>
#include <string_view>

namespace paceline {

/// Returns the 32-bit murmur2 hash with Kafka's seed.
std::uint32_t murmur2(std::string_view data) noexcept;

/// Returns the partition of a record with a key. The clients of all languages use this rule:
/// (murmur2(key) & 0x7fffffff) mod partition_count. Throws std::invalid_argument for a count below 1.
std::int32_t partition_for_key(std::string_view key, std::int32_t partition_count);

}  // namespace paceline
