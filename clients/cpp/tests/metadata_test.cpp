// Topics that do not exist, brokers that are behind, and partitions that cannot be read.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "fake_broker.hpp"
#include "fetcher.hpp"
#include "hindrance.hpp"
#include "paceline/paceline.hpp"

using namespace paceline;
using namespace std::chrono_literals;

namespace {

using detail::Clock;
using detail::make_failure;

detail::Context within(std::chrono::milliseconds timeout) { return detail::Context(CallOptions{.timeout = timeout}); }

std::shared_ptr<detail::Cluster> cluster_of(const std::vector<std::string>& addresses) {
  return std::make_shared<detail::Cluster>(ClientConfig{.bootstrap = addresses, .request_timeout = 2s});
}

ErrorCode code_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return v1::ERROR_CODE_UNSPECIFIED;
}

void set_missing(FakeBroker& broker, std::set<std::string> topics) {
  const std::lock_guard lock(broker.mutex);
  broker.missing_topics = std::move(topics);
}

}  // namespace

TEST_CASE("a partition that brokers never knew is an error after its time, and later again") {
  FakeBroker broker(1);
  broker.logs[0].resize(3);
  broker.missing_topics = {"none"};
  const auto cluster = cluster_of({broker.address()});
  detail::Fetcher fetcher(cluster, {}, {.missing = 300ms});
  fetcher.assign("none", 0, OffsetSpec::earliest(), 0);
  const auto poll = [&] { return fetcher.poll(within(30s), 10); };
  for (int i = 0; i < 2; ++i) {
    const auto begin = Clock::now();
    CHECK_THROWS_WITH_AS(poll(), doctest::Contains("reading none/0: UNKNOWN_TOPIC_OR_PARTITION"), Error);
    CHECK(Clock::now() - begin >= 300ms);
  }
  set_missing(broker, {});
  CHECK(poll().size() == 3);
  fetcher.assign("rides", 7, OffsetSpec::earliest(), 0);
  CHECK_THROWS_WITH_AS(poll(), doctest::Contains("the topic has 1 partitions"), Error);
}

TEST_CASE("a topic that appears in time is read without an error") {
  FakeBroker broker(1);
  broker.logs[0].resize(3);
  const auto behind = [](v1::TopicDescription& topic) {
    topic.clear_partitions();
    topic.mutable_error()->set_code(v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION);
  };
  broker.on_describe = {behind, behind};
  detail::Fetcher fetcher(cluster_of({broker.address()}), {}, {.missing = 60s});
  fetcher.assign("rides", 0, OffsetSpec::earliest(), 0);
  CHECK(fetcher.poll(within(30s), 10).size() == 3);
  CHECK(broker.on_describe.empty());
}

TEST_CASE("a partition that cannot be read is an error after its time, with the cause") {
  FakeBroker broker(1);
  broker.logs[0].resize(3);
  const auto cluster = cluster_of({broker.address()});
  // As the partitions that a group assigned, which a broker has known.
  detail::Fetcher fetcher(cluster, {.max_wait = 10ms}, {.missing = std::nullopt, .unread = 300ms});
  fetcher.assign("rides", 0, std::nullopt, 0);
  CHECK(fetcher.poll(within(30s), 10).size() == 3);
  {
    const std::lock_guard lock(broker.mutex);
    broker.on_fetch = [](v1::FetchPartitionResult& result, const v1::FetchPartition&) {
      result.mutable_error()->set_code(v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION);
      result.mutable_error()->set_message("it was deleted");
    };
  }
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS_WITH_AS(
        fetcher.poll(within(30s), 10),
        "reading rides/0: REQUEST_TIMED_OUT: the partition could not be read for 300 ms: UNKNOWN_TOPIC_OR_PARTITION: it was deleted",
        Error);
  {
    const std::lock_guard lock(broker.mutex);
    broker.on_fetch = nullptr;
    broker.logs[0].resize(4);
  }
  CHECK(fetcher.poll(within(30s), 10).front().offset == 3);
}

TEST_CASE("a time-out does not replace the cause of a hindrance") {
  const auto begin = Clock::now();
  const detail::Patience patience{.missing = 5s, .unread = 60s};
  detail::Hindrance hindrance;
  hindrance.note(make_failure("", v1::ERROR_CODE_REQUEST_TIMED_OUT, "no answer"), begin);
  CHECK(hindrance.lasting(patience, begin + 60s)->message.ends_with("REQUEST_TIMED_OUT: no answer"));
  hindrance.note(make_failure("", v1::ERROR_CODE_LEADER_NOT_AVAILABLE, "no leader"), begin + 1s);
  hindrance.note(make_failure("", v1::ERROR_CODE_REQUEST_TIMED_OUT, "no answer"), begin + 2s);
  CHECK_FALSE(hindrance.lasting(patience, begin + 59s));
  CHECK(hindrance.lasting(patience, begin + 60s)->message.ends_with("LEADER_NOT_AVAILABLE: no leader"));
}

TEST_CASE("only a partition that brokers never knew is missing, other failures between do not matter") {
  const auto begin = Clock::now();
  const detail::Patience patience{.missing = 5s, .unread = 60s};
  const auto unknown = make_failure("", v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION, "");
  detail::Hindrance hindrance;
  hindrance.note(unknown, begin);
  hindrance.note(make_failure("", v1::ERROR_CODE_BROKER_NOT_AVAILABLE, ""), begin + 6s);
  CHECK_FALSE(hindrance.lasting(patience, begin + 6s));
  hindrance.note(unknown, begin + 7s);
  CHECK(hindrance.lasting(patience, begin + 7s)->code == v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION);
  hindrance.note(make_failure("", v1::ERROR_CODE_LEADER_NOT_AVAILABLE, ""), begin + 8s);
  hindrance.note(unknown, begin + 20s);
  CHECK_FALSE(hindrance.lasting(patience, begin + 20s));
  hindrance.end();
  CHECK_FALSE(hindrance.lasting(patience, begin + 1h));
}

TEST_CASE("a topic that does not exist is the error although other addresses do not answer") {
  FakeBroker broker(1);
  broker.missing_topics = {"none"};
  std::string dead;
  {
    const FakeBroker ended(1);
    dead = ended.address();
  }
  // The addresses are asked in random order.
  for (int i = 0; i < 12; ++i) {
    const auto cluster = cluster_of({broker.address(), dead});
    CHECK(code_of([&] { cluster->refresh(within(10s), "none"); }) == v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION);
  }
}

TEST_CASE("a broker that is behind takes no partitions away") {
  FakeBroker broker(3);
  const auto behind = [](v1::TopicDescription& topic) {
    while (topic.partitions_size() > 1) topic.mutable_partitions()->RemoveLast();
  };
  const auto cluster = cluster_of({broker.address()});
  CHECK(cluster->partition_count(within(30s), "rides") == 3);
  CHECK(cluster->partition_counts(within(30s), {"rides"}).at("rides") == 3);
  broker.on_describe = {behind, behind};
  cluster->refresh(within(30s), "rides");
  CHECK(cluster->partition_count(within(30s), "rides") == 3);
  CHECK(cluster->known_route("rides", 2));
  CHECK(cluster->partition_counts(within(30s), {"rides"}).at("rides") == 3);
  broker.create_again(std::vector<std::vector<v1::Record>>(2));
  cluster->refresh(within(30s), "rides");
  CHECK(cluster->partition_count(within(30s), "rides") == 2);
  CHECK(cluster->partition_counts(within(30s), {"rides"}).at("rides") == 2);
}

TEST_CASE("a connection that no call has used for its time is closed") {
  const ClientConfig config{.bootstrap = {"127.0.0.1:1"}};
  detail::Cluster cluster(config, 5min, 50ms);
  const std::weak_ptr<grpc::Channel> idle = cluster.channel("127.0.0.1:1");
  const auto held = cluster.channel("127.0.0.1:2");
  std::this_thread::sleep_for(60ms);
  CHECK_FALSE(idle.expired());
  const auto used = cluster.channel("127.0.0.1:3");
  CHECK(idle.expired());
  CHECK(cluster.channel("127.0.0.1:2") == held);
  CHECK(cluster.channel("127.0.0.1:3") == used);
}

TEST_CASE("a broker that is behind hides no partitions from a client that never counted them") {
  FakeBroker current(3);
  FakeBroker behind(1);
  FakeBroker without_topic(1);
  without_topic.missing_topics = {"rides"};
  // The addresses are asked in random order.
  for (int i = 0; i < 12; ++i) {
    const auto cluster = cluster_of({current.address(), behind.address(), without_topic.address()});
    CHECK(cluster->partition_counts(within(30s), {"rides"}).at("rides") == 3);
  }
}

TEST_CASE("the count of a topic that was created again is that of the id of most brokers") {
  FakeBroker first(2);
  FakeBroker second(2);
  FakeBroker behind(5);
  behind.topic_id = "deleted";
  for (int i = 0; i < 12; ++i) {
    const auto cluster = cluster_of({first.address(), second.address(), behind.address()});
    CHECK(cluster->partition_counts(within(30s), {"rides"}).at("rides") == 2);
  }
}

TEST_CASE("partitions are counted although an address does not answer") {
  FakeBroker broker(3);
  std::string dead;
  {
    const FakeBroker ended(1);
    dead = ended.address();
  }
  for (int i = 0; i < 4; ++i) {
    const auto cluster = cluster_of({broker.address(), dead});
    CHECK(cluster->partition_counts(within(30s), {"rides"}).at("rides") == 3);
  }
  CHECK(code_of([&] { cluster_of({dead})->partition_counts(within(2s), {"rides"}); }) == v1::ERROR_CODE_BROKER_NOT_AVAILABLE);
}

TEST_CASE("records for a topic or partition that brokers never knew fail after five seconds, all at once") {
  FakeBroker broker(1);
  broker.missing_topics = {"none"};
  Client client({.bootstrap = {broker.address()}, .request_timeout = 2s});
  auto producer = client.make_producer({.delivery_timeout = 60s, .batch_bytes = 1});
  const auto begin = Clock::now();
  std::vector<std::future<RecordPlace>> places;
  for (int i = 0; i < 3; ++i) places.push_back(producer.send({.topic = "none", .partition = 0, .value = "a"}));
  places.push_back(producer.send({.topic = "rides", .partition = 7, .value = "a"}));
  for (auto& place : places) {
    try {
      place.get();
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.code() == v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION);
      CHECK(error.definite());
    }
  }
  CHECK(Clock::now() - begin >= detail::missing_topic_patience);
  CHECK(Clock::now() - begin < 30s);
  // A later record has five seconds of its own, in which the topic may appear.
  auto later = producer.send({.topic = "none", .partition = 0, .value = "b"});
  CHECK(later.wait_for(500ms) == std::future_status::timeout);
  set_missing(broker, {});
  CHECK(later.get().offset == 0);
}

TEST_CASE("a record without a partition for a topic that brokers do not know is definitely not written") {
  FakeBroker broker(1);
  broker.missing_topics = {"none"};
  Client client({.bootstrap = {broker.address()}, .request_timeout = 2s});
  auto producer = client.make_producer();
  try {
    producer.send({.topic = "none", .value = "a"});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION);
    CHECK(error.definite());
  }
}

TEST_CASE("metadata of a deleted topic does not end a record of unknown outcome") {
  FakeBroker broker(1);
  Client client({.bootstrap = {broker.address()}, .request_timeout = 10s});
  auto producer = client.make_producer();
  producer.send({.topic = "rides", .partition = 0, .value = "a"}).get();
  {
    const std::lock_guard lock(broker.mutex);
    broker.lost_answers = 1;
    broker.on_describe = {[](v1::TopicDescription& topic) { topic.set_topic_id("deleted"); }};
  }
  CHECK(producer.send({.topic = "rides", .partition = 0, .value = "b"}).get().offset == 1);
  CHECK(broker.on_describe.empty());
  CHECK(broker.logs[0].size() == 2);
}

TEST_CASE("a record of unknown outcome fails when its topic stays deleted") {
  FakeBroker broker(1);
  Client client({.bootstrap = {broker.address()}, .request_timeout = 1s});
  auto producer = client.make_producer();
  producer.send({.topic = "rides", .partition = 0, .value = "a"}).get();
  {
    const std::lock_guard lock(broker.mutex);
    broker.lost_answers = 1;
    broker.topic_id += "-again";
  }
  try {
    producer.send({.topic = "rides", .partition = 0, .value = "b"}).get();
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION);
    CHECK_FALSE(error.definite());
  }
}

TEST_CASE("an offset that was looked up in a deleted topic is looked up again") {
  FakeBroker broker(1);
  broker.logs[0].resize(3);
  // The broker's mutex is held.
  broker.on_listed = [&] {
    broker.topic_id += "-again";
    broker.logs[0].resize(7);
  };
  Client client({.bootstrap = {broker.address()}, .request_timeout = 2s});
  auto consumer = client.make_consumer({.reset = ResetPolicy::error});
  consumer.assign("rides", 0, OffsetSpec::latest());
  const auto until = Clock::now() + 30s;
  while (consumer.position("rides", 0) != 7 && Clock::now() < until) CHECK(consumer.poll(20ms).empty());
  CHECK(consumer.position("rides", 0) == 7);
}
