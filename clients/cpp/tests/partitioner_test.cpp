#include <doctest/doctest.h>

#include <stdexcept>

#include "paceline/partitioner.hpp"

TEST_CASE("partition_for_key matches the vectors of record.proto") {
  struct Vector {
    const char* key;
    std::int32_t hash;
    std::int32_t partition;
  };
  for (const auto& [key, hash, partition] :
       {Vector{"", 275646681, 9}, Vector{"21", -973932308, 0}, Vector{"foobar", -790332482, 6},
        Vector{"a-little-bit-long-string", -985981536, 8}, Vector{"a-little-bit-longer-string", -1486304829, 11},
        Vector{"abc", 479470107, 3}}) {
    CAPTURE(key);
    CHECK(static_cast<std::int32_t>(paceline::murmur2(key)) == hash);
    CHECK(paceline::partition_for_key(key, 12) == partition);
  }
}

TEST_CASE("a partition count below 1 is refused") {
  CHECK_THROWS_AS(paceline::partition_for_key("key", 0), std::invalid_argument);
}
