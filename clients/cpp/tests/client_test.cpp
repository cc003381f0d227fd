#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cluster.hpp"
#include "fake_broker.hpp"
#include "fetcher.hpp"
#include "paceline/paceline.hpp"
#include "text.hpp"

using namespace paceline;
using namespace std::chrono_literals;

namespace {

ClientConfig config_of(const FakeBroker& broker) { return {.bootstrap = {broker.address()}, .request_timeout = 2s}; }

std::size_t produce_calls(FakeBroker& broker) {
  const std::lock_guard lock(broker.mutex);
  return broker.produced.size();
}

/// Returns an address where no process listens.
std::string dead_address() {
  const FakeBroker broker(1);
  return broker.address();
}

}  // namespace

TEST_CASE("records that gather during the linger time are sent in one call for all partitions") {
  FakeBroker broker(3);
  Client client(config_of(broker));
  auto producer = client.make_producer({.linger = 1h});
  for (int i = 0; i < 30; ++i) producer.send({.topic = "rides", .partition = i % 3, .value = std::to_string(i)});
  CHECK(producer.flush(30s));
  CHECK(produce_calls(broker) <= 3);  // Producer ids arrive one by one.
  const auto calls = produce_calls(broker);
  for (int i = 0; i < 30; ++i) producer.send({.topic = "rides", .partition = i % 3, .value = std::to_string(i)});
  CHECK(producer.flush(30s));
  CHECK(produce_calls(broker) == calls + 1);
  for (const auto& log : broker.logs) CHECK(log.size() == 20);
}

TEST_CASE("the batches of many partitions are sent in several calls when a broker would refuse their size") {
  FakeBroker broker(24);  // Takes 4 MiB in a request, as brokers do.
  Client client(config_of(broker));
  auto producer = client.make_producer({.linger = 1h});
  for (const std::size_t size : {1, 240'000}) {
    for (int i = 0; i < 24; ++i) producer.send({.topic = "rides", .partition = i, .value = std::string(size, 'a')});
    CHECK(producer.flush(30s));
  }
  for (const auto& log : broker.logs) CHECK(log.size() == 2);
}

TEST_CASE("a full batch does not wait for the linger time") {
  FakeBroker broker(1);
  Client client(config_of(broker));
  auto producer = client.make_producer({.linger = 1h, .batch_bytes = 1'000});
  auto first = producer.send({.topic = "rides", .partition = 0, .value = std::string(600, 'a')});
  auto second = producer.send({.topic = "rides", .partition = 0, .value = std::string(600, 'b')});
  CHECK(first.wait_for(30s) == std::future_status::ready);
  CHECK(second.wait_for(0s) == std::future_status::timeout);
  producer.close(30s);
  CHECK(second.get().offset == 1);
}

TEST_CASE("the destructor of a producer delivers what was sent") {
  FakeBroker broker(1);
  Client client(config_of(broker));
  std::future<RecordPlace> place;
  {
    auto producer = client.make_producer({.linger = 1h});
    place = producer.send({.topic = "rides", .key = "alice", .value = "hello"});
  }
  CHECK(place.wait_for(0s) == std::future_status::ready);
  CHECK(place.get().offset == 0);
}

TEST_CASE("a lost answer is repeated under the same sequence number") {
  FakeBroker broker(1);
  broker.lost_answers = 2;
  Client client(config_of(broker));
  auto producer = client.make_producer();
  CHECK(producer.send({.topic = "rides", .partition = 0, .value = "a"}).get().offset == 0);
  CHECK(producer.send({.topic = "rides", .partition = 0, .value = "b"}).get().offset == 1);
  REQUIRE(broker.produced.size() == 4);
  for (int i : {0, 1, 2}) {
    CHECK(broker.produced[static_cast<std::size_t>(i)].partitions(0).records().base_sequence() == 0);
    CHECK(broker.produced[static_cast<std::size_t>(i)].partitions(0).records().producer_id() == 1);
  }
  CHECK(broker.produced[3].partitions(0).records().base_sequence() == 1);
}

TEST_CASE("an outcome that stays unknown is not definite and the next batch has a new producer id") {
  FakeBroker broker(1);
  broker.lost_answers = 1'000;
  Client client(config_of(broker));
  auto producer = client.make_producer({.delivery_timeout = 3s});
  try {
    producer.send({.topic = "rides", .partition = 0, .value = "a"}).get();
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == v1::ERROR_CODE_REQUEST_TIMED_OUT);
    CHECK_FALSE(error.definite());
  }
  broker.lost_answers = 0;
  producer.send({.topic = "rides", .partition = 0, .value = "b"}).get();
  CHECK(broker.produced.back().partitions(0).records().producer_id() == 2);
  CHECK(broker.produced.back().partitions(0).records().base_sequence() == 0);
}

TEST_CASE("a record that the broker refuses for good fails at once and others do not") {
  FakeBroker broker(1);
  broker.refusals = {v1::ERROR_CODE_MESSAGE_TOO_LARGE};
  Client client(config_of(broker));
  auto producer = client.make_producer();
  auto refused = producer.send({.topic = "rides", .partition = 0, .value = "a"});
  CHECK_THROWS_WITH_AS(refused.get(), doctest::Contains("producing to rides/0: MESSAGE_TOO_LARGE"), Error);
  CHECK(producer.send({.topic = "rides", .partition = 0, .value = "b"}).get().offset == 0);
}

TEST_CASE("a batch that is too large is sent in smaller parts, in order") {
  FakeBroker broker(1);
  broker.too_many_records = 3;
  Client client(config_of(broker));
  auto producer = client.make_producer({.linger = 1h});
  std::vector<std::future<RecordPlace>> places;
  for (int i = 0; i < 11; ++i) places.push_back(producer.send({.topic = "rides", .partition = 0, .value = std::to_string(i)}));
  CHECK(producer.flush(30s));
  REQUIRE(broker.logs[0].size() == 11);
  for (int i = 0; i < 11; ++i) {
    CHECK(places[static_cast<std::size_t>(i)].get().offset == i);
    CHECK(broker.logs[0][static_cast<std::size_t>(i)].value() == std::to_string(i));
  }
}

TEST_CASE("a partition that the topic does not have is an error after the delivery timeout") {
  FakeBroker broker(2);
  Client client(config_of(broker));
  auto producer = client.make_producer({.delivery_timeout = 3s});
  auto place = producer.send({.topic = "rides", .partition = 7, .value = "a"});
  CHECK_THROWS_WITH_AS(place.get(), doctest::Contains("the topic has 2 partitions"), Error);
}

TEST_CASE("an unreachable cluster ends a delivery definitely and with the cause") {
  Client client({.bootstrap = {dead_address()}, .request_timeout = 1s});
  auto producer = client.make_producer({.delivery_timeout = 3s});
  try {
    producer.send({.topic = "rides", .partition = 0, .value = "a"}).get();
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == v1::ERROR_CODE_BROKER_NOT_AVAILABLE);
    CHECK(error.definite());
    CHECK(std::string(error.what()).find("failed to connect") != std::string::npos);
  }
}

TEST_CASE("closing a producer early fails the waiting records and refuses later records") {
  FakeBroker broker(1);
  broker.refusals = std::deque<ErrorCode>(1'000, v1::ERROR_CODE_NOT_ENOUGH_REPLICAS);
  Client client(config_of(broker));
  auto producer = client.make_producer();
  auto place = producer.send({.topic = "rides", .partition = 0, .value = "a"});
  CHECK_FALSE(producer.close(100ms));
  CHECK_THROWS_WITH_AS(place.get(), doctest::Contains("the producer was closed"), Error);
  CHECK_THROWS_AS(producer.send({.topic = "rides", .partition = 0}), std::logic_error);
  CHECK(producer.close(0ms));
}

TEST_CASE("closing a producer fails records with the last cause of their delay") {
  Client client({.bootstrap = {dead_address()}, .request_timeout = 1s});
  auto producer = client.make_producer({.linger = 0ms, .batch_bytes = 1});
  auto first = producer.send({.topic = "rides", .partition = 0, .value = "a"});
  auto second = producer.send({.topic = "rides", .partition = 0, .value = "b"});
  CHECK_FALSE(producer.close(1s));
  for (auto* place : {&first, &second})
    CHECK_THROWS_WITH_AS(place->get(), doctest::Contains("was delivered; the last failure: BROKER_NOT_AVAILABLE: failed to connect"),
                         Error);
}

TEST_CASE("send waits while too many records have no outcome, at most for the timeout of the caller") {
  FakeBroker broker(1);
  Client client(config_of(broker));
  auto producer = client.make_producer({.linger = 1h, .max_pending = 1});
  producer.send({.topic = "rides", .partition = 0, .value = "a"});
  CHECK_THROWS_WITH_AS(producer.send({.topic = "rides", .partition = 0, .value = "b"}, {.timeout = 50ms}),
                       doctest::Contains("max_pending"), Error);
  std::stop_source source;
  source.request_stop();
  CHECK_THROWS_AS(producer.send({.topic = "rides", .partition = 0}, {.stop = source.get_token()}), CancelledError);
}

TEST_CASE("a consumer returns records of every partition, at most as many as asked for") {
  FakeBroker broker(2);
  Client client(config_of(broker));
  {
    auto producer = client.make_producer();
    for (int i = 0; i < 10; ++i) producer.send({.topic = "rides", .partition = i % 2, .key = "", .headers = {{"h", std::nullopt}}});
  }
  auto consumer = client.make_consumer();
  CHECK_THROWS_AS(consumer.poll(1s), std::logic_error);
  consumer.assign_topic("rides");
  CHECK_FALSE(consumer.position("rides", 0).has_value());
  const auto records = consumer.poll(30s, {}, 3);
  REQUIRE(records.size() == 3);
  CHECK(records[0].key == "");
  CHECK_FALSE(records[0].value.has_value());
  REQUIRE(records[0].headers.size() == 1);
  CHECK_FALSE(records[0].headers[0].value.has_value());
  CHECK(consumer.position("rides", records[0].partition) == 3);
  std::size_t read = 3;
  while (read < 10) read += consumer.poll(30s).size();
  CHECK(consumer.poll(50ms).empty());
}

TEST_CASE("a truncation is reported although another partition has records") {
  FakeBroker broker(2);
  broker.logs[1].resize(5);
  broker.on_fetch = [](v1::FetchPartitionResult& result, const v1::FetchPartition& asked) {
    if (asked.partition() == 0 && asked.fetch_offset() == 9) {
      result.mutable_diverging_epoch()->set_epoch(1);
      result.mutable_diverging_epoch()->set_end_offset(4);
    }
  };
  Client client(config_of(broker));
  auto consumer = client.make_consumer();
  consumer.assign("rides", 0, std::int64_t{9});
  consumer.assign("rides", 1, std::int64_t{0});
  CHECK(consumer.poll(30s).size() == 5);
  try {
    consumer.poll(30s);
    FAIL("no error");
  } catch (const TruncatedError& error) {
    CHECK(error.position == 9);
    CHECK(error.divergent_offset == 4);
  }
  CHECK(consumer.position("rides", 0) == 4);
}

TEST_CASE("a stop while a position is looked up does not keep other partitions from being read later") {
  FakeBroker broker(2);
  broker.logs[0].resize(3);
  broker.list_pause = 1h;
  Client client(config_of(broker));
  auto consumer = client.make_consumer();
  consumer.assign("rides", 0, std::int64_t{3});
  consumer.assign("rides", 1);
  std::stop_source source;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(200ms);
    source.request_stop();
  });
  CHECK_THROWS_AS(consumer.poll(30s, source.get_token()), CancelledError);
  {
    const std::lock_guard lock(broker.mutex);
    broker.list_pause = 0ms;
    broker.logs[0].resize(4);
  }
  const auto records = consumer.poll(20s);
  REQUIRE(records.size() == 1);
  CHECK(records[0].offset == 3);
}

TEST_CASE("a partition without a leader and a slow look-up do not hold up other partitions") {
  FakeBroker broker(3);
  broker.logs[1].resize(3);
  broker.leaderless = {0};
  broker.list_pause = 1h;
  Client client({.bootstrap = {broker.address()}, .request_timeout = 20s});
  auto consumer = client.make_consumer();
  consumer.assign("rides", 0);
  consumer.assign("rides", 1, std::int64_t{0});
  consumer.assign("rides", 2);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(consumer.poll(15s).size() == 3);
  CHECK(std::chrono::steady_clock::now() - begin < 10s);
}

TEST_CASE("repeated polls with timeout 0 read records") {
  FakeBroker broker(1);
  broker.logs[0].resize(3);
  Client client(config_of(broker));
  auto consumer = client.make_consumer();
  consumer.assign("rides", 0);
  std::size_t read = 0;
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (read < 3 && std::chrono::steady_clock::now() < until) {
    read += consumer.poll(0s).size();
    std::this_thread::sleep_for(5ms);
  }
  CHECK(read == 3);
}

TEST_CASE("a topic that was deleted and created again is read from the offset of the reset policy") {
  FakeBroker broker(1);
  broker.logs[0].resize(3);
  Client client(config_of(broker));
  auto earliest = client.make_consumer();
  auto strict = client.make_consumer({.reset = ResetPolicy::error});
  for (auto* consumer : {&earliest, &strict}) {
    consumer->assign("rides", 0, std::int64_t{0});
    CHECK(consumer->poll(30s).size() == 3);
  }
  broker.create_again({std::vector<v1::Record>(5)});
  std::vector<std::int64_t> offsets;
  while (offsets.size() < 5) {
    const auto records = earliest.poll(30s);
    REQUIRE_FALSE(records.empty());
    for (const auto& record : records) offsets.push_back(record.offset);
  }
  CHECK(offsets == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  CHECK_THROWS_WITH_AS(strict.poll(30s), doctest::Contains("created again"), Error);
}

TEST_CASE("an offset of a topic that was created again is found although its leader epoch is lower") {
  FakeBroker broker(1);
  broker.leader_epoch = 7;
  Client client(config_of(broker));
  CHECK(client.list_offset("rides", 0, OffsetSpec::latest()) == 0);
  broker.create_again({std::vector<v1::Record>(5)}, 1);
  CHECK(client.list_offset("rides", 0, OffsetSpec::latest(), {.timeout = 10s}) == 5);
}

TEST_CASE("a record that is written while a time without records is looked up is read") {
  FakeBroker broker(1);
  broker.logs[0].resize(3);
  Client client(config_of(broker));
  auto consumer = client.make_consumer();
  consumer.assign("rides", 0, OffsetSpec::at(Timestamp(1h)));
  const auto records = consumer.poll(10s);
  REQUIRE(records.size() == 1);
  CHECK(records[0].offset == 3);
}

TEST_CASE("a consumer asks again for leaders although no fetch fails") {
  FakeBroker broker(1);
  detail::Fetcher fetcher(std::make_shared<detail::Cluster>(config_of(broker), 10ms), {.max_wait = 10ms});
  fetcher.assign("rides", 0, std::nullopt, 0);
  const auto descriptions = [&] {
    const std::lock_guard lock(broker.mutex);
    return broker.descriptions;
  };
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (descriptions() < 3 && std::chrono::steady_clock::now() < until)
    CHECK(fetcher.poll(detail::Context(CallOptions{.timeout = 20ms}), 1).empty());
  CHECK(descriptions() >= 3);
}

TEST_CASE("a watch follows the active controller and continues after the last event") {
  FakeBroker broker(1);
  Client client(config_of(broker));
  std::stop_source source;
  int events = 0;
  client.watch_events(
      [&](const v1::EventBatch& batch) {
        events += batch.events_size();
        if (events == 2) source.request_stop();
      },
      source.get_token());
  REQUIRE(broker.watches.size() == 2);
  CHECK(broker.watches[0].active_controller_only());
  CHECK_FALSE(broker.watches[0].has_since_ms());
  CHECK(broker.watches[1].cursor() == "cursor-1");
  CHECK(broker.watches[1].since_ms() == 4'000'000'000'000);
}

TEST_CASE("an old partition count is used while no broker can be reached") {
  auto broker = std::make_unique<FakeBroker>(3);
  detail::Cluster cluster(config_of(*broker), 1ms);
  const auto count = [&] { return cluster.partition_count(detail::Context(CallOptions{.timeout = 10s}), "rides"); };
  CHECK(count() == 3);
  {
    const std::lock_guard lock(broker->mutex);
    broker->logs.resize(4);
  }
  std::this_thread::sleep_for(5ms);
  CHECK(count() == 4);
  broker.reset();
  CHECK(count() == 4);
}

TEST_CASE("two threads may close a producer") {
  FakeBroker broker(1);
  Client client(config_of(broker));
  for (int i = 0; i < 20; ++i) {
    auto producer = client.make_producer();
    auto place = producer.send({.topic = "rides", .partition = 0});
    std::jthread other([&] { producer.close(30s); });
    CHECK(producer.close(30s));
    CHECK(place.get().offset == i);
  }
}

TEST_CASE("text that is not UTF-8 is refused before it is sent") {
  const Client client({.bootstrap = {"127.0.0.1:1"}});
  auto producer = client.make_producer();
  CHECK_THROWS_WITH_AS(producer.send({.topic = "rides\xff", .partition = 0}), doctest::Contains("topic is not UTF-8"),
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(producer.send({.topic = "rides", .partition = 0, .headers = {{"ok", ""}, {"\xc0\xaf", ""}}}),
                       doctest::Contains("header is not UTF-8"), std::invalid_argument);
  CHECK(producer.close(0ms));
  auto consumer = client.make_consumer();
  CHECK_THROWS_AS(consumer.assign("rides\xff", 0), std::invalid_argument);
  CHECK_THROWS_AS(client.make_group_consumer({.group_id = "\xff"}), std::invalid_argument);
  for (const auto* good : {"", "a", "\xc2\x80", "\xe2\x82\xac", "\xed\x9f\xbf", "\xf0\x9f\x9a\x95", "\xf4\x8f\xbf\xbf"})
    CHECK(detail::is_utf8(good));
  for (const auto* bad : {"\x80", "\xc2", "\xc1\xbf", "\xe2\x82", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                          "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xff"})
    CHECK_FALSE(detail::is_utf8(bad));
}

TEST_CASE("a stop ends a poll at once and a new assignment discards what was read before") {
  FakeBroker broker(1);
  broker.logs[0].resize(3);
  Client client(config_of(broker));
  auto consumer = client.make_consumer({.max_wait = 10s});
  consumer.assign("rides", 0);
  CHECK(consumer.poll(30s, {}, 1).front().offset == 0);
  consumer.assign("rides", 0, std::int64_t{2});
  CHECK(consumer.poll(30s).front().offset == 2);
  std::stop_source source;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(50ms);
    source.request_stop();
  });
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(consumer.poll(1h, source.get_token()), CancelledError);
  CHECK(std::chrono::steady_clock::now() - begin < 9s);
}

TEST_CASE("a stop and a time limit end calls to a cluster that does not answer") {
  Client client({.bootstrap = {dead_address()}, .request_timeout = 1s});
  CHECK_THROWS_WITH_AS(client.describe_cluster({.timeout = 3s}), doctest::Contains("BROKER_NOT_AVAILABLE"), Error);
  std::stop_source source;
  source.request_stop();
  CHECK_THROWS_AS(client.describe_cluster({.stop = source.get_token()}), CancelledError);
  client.watch_events([](const v1::EventBatch&) {}, source.get_token());
}

TEST_CASE("a config that cannot work is refused with the reason") {
  CHECK_THROWS_WITH_AS(Client({}), doctest::Contains("bootstrap is empty"), std::invalid_argument);
  CHECK_THROWS_WITH_AS(Client({.bootstrap = {"localhost"}}), doctest::Contains("is not host:port"), std::invalid_argument);
  CHECK_THROWS_WITH_AS(Client({.bootstrap = {"a:1"}, .tls = TlsFiles{.ca_file = "/no/such/file"}}),
                       doctest::Contains("cannot read"), std::invalid_argument);
  CHECK_THROWS_WITH_AS(Client({.bootstrap = {"a:1"}, .tls = TlsFiles{.certificate_file = "c"}}),
                       doctest::Contains("TLS needs ca_file"), std::invalid_argument);
}
