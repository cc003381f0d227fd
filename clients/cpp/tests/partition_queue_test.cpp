#include <doctest/doctest.h>

#include "partition_queue.hpp"

using namespace paceline::detail;

namespace {

const TimePoint begin{};

PendingRecord record_of(std::size_t size, milliseconds queued = milliseconds(0)) {
  PendingRecord record;
  record.size = size;
  record.queued = begin + queued;
  record.deadline = begin + queued + milliseconds(60'000);
  return record;
}

}  // namespace

TEST_CASE("a batch is ready after the linger time of its first record, or when it is full") {
  PartitionQueue queue("rides", 0);
  CHECK_FALSE(queue.ready_at(milliseconds(5), 100).has_value());
  queue.put(record_of(60));
  queue.put(record_of(30, milliseconds(3)));
  CHECK(queue.ready_at(milliseconds(5), 100) == begin + milliseconds(5));
  queue.put(record_of(10, milliseconds(4)));
  CHECK(queue.ready_at(milliseconds(5), 100) == begin);
}

TEST_CASE("a flush does not wait for the linger time") {
  PartitionQueue queue("rides", 0);
  queue.put(record_of(10));
  const auto mark = queue.mark_flush();
  CHECK(queue.ready_at(milliseconds(5'000), 100) == begin);
  queue.take(100, begin);
  const auto batch = queue.finish();
  CHECK_FALSE(queue.reached(mark));
  queue.complete(batch.promises.size());
  CHECK(queue.reached(mark));
  queue.put(record_of(10));
  CHECK(queue.ready_at(milliseconds(5'000), 100) == begin + milliseconds(5'000));
}

TEST_CASE("a batch takes records up to its size, and a record that is larger alone") {
  PartitionQueue queue("rides", 0);
  for (const auto size : {40U, 60U, 1U, 500U, 1U}) queue.put(record_of(size));
  for (const auto count : {2, 1, 1, 1}) {
    queue.take(100, begin);
    CHECK(queue.batch->list.records_size() == count);
    CHECK(queue.finish().promises.size() == static_cast<std::size_t>(count));
  }
  CHECK(queue.empty());
}

TEST_CASE("a batch has the deadline of its oldest record") {
  PartitionQueue queue("rides", 0);
  queue.put(record_of(1, milliseconds(10)));
  queue.put(record_of(1, milliseconds(20)));
  queue.take(100, begin);
  CHECK(queue.batch->deadline == begin + milliseconds(60'010));
}

TEST_CASE("sequence numbers wrap to zero") {
  CHECK(sequence_after(2147483647, 1) == 0);
  CHECK(sequence_after(2147483640, 10) == 2);
  CHECK(sequence_after(5, 3) == 8);
}
