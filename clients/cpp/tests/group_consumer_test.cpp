// A member of a group against a coordinator and a broker in this process.
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "fake_broker.hpp"
#include "fake_coordinator.hpp"
#include "paceline/paceline.hpp"

using namespace paceline;
using namespace std::chrono_literals;

namespace {

struct Cluster {
  FakeCoordinator coordinator;
  FakeBroker broker{1, &coordinator};
  Client client{{.bootstrap = {broker.address()}, .request_timeout = 5s}};

  Cluster() {
    coordinator.port = broker.port();
    broker.logs[0].resize(3);
  }

  GroupConsumer consumer(std::chrono::milliseconds max_poll_interval = 60s) const {
    GroupConfig config{.group_id = "g"};
    config.metadata_max_age = 50ms;
    config.heartbeat_interval = 50ms;
    config.session_timeout = 60s;
    config.max_poll_interval = max_poll_interval;
    config.auto_commit.reset();
    return client.make_group_consumer(config);
  }
};

RebalanceListener noting(std::vector<std::string>& events) {
  const auto note = [&events](const char* event) { return [&events, event](const auto&) { events.push_back(event); }; };
  return {.on_assigned = note("assigned"), .on_revoked = note("revoked"), .on_lost = note("lost")};
}

void wait_until(const std::function<bool()>& holds) {
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (!holds() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(5ms);
  REQUIRE(holds());
}

void poll_until(GroupConsumer& consumer, const std::function<bool()>& holds) {
  wait_until([&] {
    if (!holds()) consumer.poll(20ms);
    return holds();
  });
}

}  // namespace

TEST_CASE("the position in a deleted topic is not committed for the topic that was created again") {
  Cluster cluster;
  GroupConfig config{.group_id = "g"};
  config.heartbeat_interval = 50ms;
  config.auto_commit = 50ms;
  config.consumer.reset = ResetPolicy::error;
  auto consumer = cluster.client.make_group_consumer(config);
  consumer.subscribe({"rides"});
  wait_until([&] {
    try {
      consumer.poll(20ms);
    } catch (const Error& error) {
      CHECK(error.code() == v1::ERROR_CODE_OFFSET_OUT_OF_RANGE);
    }
    return !consumer.assignment().empty();
  });
  consumer.seek("rides", 0, 0);
  const auto committed = [&] {
    const std::lock_guard lock(cluster.coordinator.mutex);
    return cluster.coordinator.committed.contains("rides/0") ? cluster.coordinator.committed["rides/0"] : -1;
  };
  wait_until([&] {
    try {
      consumer.poll(20ms);
    } catch (const Error&) {
      // The partition had no committed offset before seek.
    }
    return committed() == 3;
  });
  cluster.broker.create_again({std::vector<v1::Record>(5)});
  std::string problem;
  wait_until([&] {
    try {
      consumer.poll(20ms);
    } catch (const Error& error) {
      problem = error.what();
    }
    return problem.find("created again") != std::string::npos;
  });
  {
    const std::lock_guard lock(cluster.coordinator.mutex);
    cluster.coordinator.committed.clear();
  }
  consumer.close();
  CHECK(committed() == -1);
}

TEST_CASE("a membership that begins while a late departure is under way stays") {
  Cluster cluster;
  auto& coordinator = cluster.coordinator;
  coordinator.holds_leaves = true;
  std::vector<std::string> events;
  auto consumer = cluster.consumer(2s);
  consumer.subscribe({"rides"}, noting(events));
  poll_until(consumer, [&] { return !consumer.assignment().empty(); });
  wait_until([&] { return coordinator.count(&FakeCoordinator::leaves) == 1; });
  poll_until(consumer, [&] { return coordinator.count(&FakeCoordinator::joins) == 2 && !consumer.assignment().empty(); });
  const auto before = coordinator.count(&FakeCoordinator::heartbeats);
  {
    const std::lock_guard lock(coordinator.mutex);
    coordinator.holds_leaves = false;
  }
  poll_until(consumer, [&] { return coordinator.count(&FakeCoordinator::heartbeats) >= before + 2; });
  CHECK(coordinator.count(&FakeCoordinator::joins) == 2);
  CHECK(consumer.generation() == 2);
  CHECK(events == std::vector<std::string>{"assigned", "lost", "assigned"});
}

TEST_CASE("partitions of a membership that ended before a poll are not read") {
  Cluster cluster;
  auto& coordinator = cluster.coordinator;
  std::vector<std::string> events;
  auto consumer = cluster.consumer(1s);
  consumer.subscribe({"rides"}, noting(events));
  consumer.poll(0ms);
  wait_until([&] { return coordinator.count(&FakeCoordinator::leaves) == 1; });
  poll_until(consumer, [&] { return coordinator.count(&FakeCoordinator::joins) >= 2 && !consumer.assignment().empty(); });
  CHECK(events == std::vector<std::string>{"assigned"});
}

TEST_CASE("a listener commits while the consumer closes") {
  Cluster cluster;
  auto consumer = cluster.consumer();
  consumer.subscribe({"rides"}, {.on_revoked = [&](const auto&) { consumer.commit(); }});
  poll_until(consumer, [&] { return consumer.position("rides", 0) == 3; });
  consumer.close();
  CHECK(cluster.coordinator.committed["rides/0"] == 3);
  CHECK_THROWS_AS(consumer.poll(0ms), std::logic_error);
}

TEST_CASE("a listener may subscribe, and may not poll or close") {
  Cluster cluster;
  auto consumer = cluster.consumer();
  std::vector<std::string> events;
  int refusals = 0;
  const auto refused = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const std::logic_error&) {
      ++refusals;
    }
  };
  const std::string large(1'000, 'x');
  consumer.subscribe({"rides"}, {.on_assigned = [&, large](const auto&) {
    consumer.subscribe({"rides"}, noting(events));
    refused([&] { consumer.poll(0ms); });
    refused([&] { consumer.close(); });
    events.push_back(std::to_string(large.size()));
  }});
  poll_until(consumer, [&] { return events.size() == 3; });
  CHECK(refusals == 2);
  CHECK(events == std::vector<std::string>{"1000", "revoked", "assigned"});
}

TEST_CASE("a leader that keeps the assignment looks for new partitions") {
  Cluster cluster;
  cluster.coordinator.is_leader = cluster.coordinator.skips_assignment = true;
  auto consumer = cluster.consumer();
  consumer.subscribe({"rides"});
  poll_until(consumer, [&] { return consumer.position("rides", 0) == 3; });
  CHECK(cluster.coordinator.count(&FakeCoordinator::joins) == 1);
  {
    const std::lock_guard lock(cluster.broker.mutex);
    cluster.broker.logs.resize(2);
  }
  poll_until(consumer, [&] { return cluster.coordinator.count(&FakeCoordinator::joins) == 2; });
}

TEST_CASE("a member does not join for a topic that does not exist until the topic appears") {
  Cluster cluster;
  cluster.broker.missing_topics = {"rides"};
  auto consumer = cluster.consumer();
  consumer.subscribe({"rides"});
  CHECK_THROWS_WITH_AS(consumer.poll(60s), doctest::Contains("UNKNOWN_TOPIC_OR_PARTITION"), Error);
  CHECK(cluster.coordinator.count(&FakeCoordinator::joins) == 0);
  {
    const std::lock_guard lock(cluster.broker.mutex);
    cluster.broker.missing_topics.clear();
  }
  poll_until(consumer, [&] { return consumer.position("rides", 0) == 3; });
}

TEST_CASE("a commit that was refused after a lost answer is not definite") {
  Cluster cluster;
  auto consumer = cluster.consumer();
  consumer.subscribe({"rides"});
  poll_until(consumer, [&] { return consumer.position("rides", 0) == 3; });
  for (const int lost : {0, 1}) {
    {
      const std::lock_guard lock(cluster.coordinator.mutex);
      cluster.coordinator.lost_commits = lost;
      cluster.coordinator.refuses_commits = true;
    }
    try {
      consumer.commit();
      FAIL("no error");
    } catch (const CommitFailedError& error) {
      CHECK(error.definite() == (lost == 0));
    }
  }
}

TEST_CASE("a consumer closes although its departure has no answer") {
  Cluster cluster;
  cluster.coordinator.refuses_leaves = true;
  auto consumer = cluster.consumer();
  consumer.subscribe({"rides"});
  poll_until(consumer, [&] { return consumer.position("rides", 0) == 3; });
  consumer.close();
  CHECK(cluster.coordinator.count(&FakeCoordinator::leaves) == 1);
}
