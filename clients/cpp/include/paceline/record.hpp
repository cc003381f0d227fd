#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace paceline {

/// Bytes that may be null: std::nullopt is null, an empty string is empty.
using Bytes = std::optional<std::string>;

/// Milliseconds since the Unix epoch.
using Timestamp = std::chrono::sys_time<std::chrono::milliseconds>;

struct Header {
  std::string key{};
  Bytes value{};
};

/// A record to send.
struct Record {
  std::string topic{};
  /// If not set, the producer chooses: by the hash of the key, or one random partition per batch for records without a key.
  std::optional<std::int32_t> partition{};
  Bytes key{};
  Bytes value{};
  std::vector<Header> headers{};
  /// The current time if not set.
  std::optional<Timestamp> timestamp{};
};

/// A record that was read.
struct ConsumedRecord {
  std::string topic{};
  std::int32_t partition = 0;
  std::int64_t offset = 0;
  Bytes key{};
  Bytes value{};
  std::vector<Header> headers{};
  Timestamp timestamp{};
};

}  // namespace paceline
