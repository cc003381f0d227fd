// Assignors and the membership, without a broker. tests/conformance plays whole groups.
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "groups/assignors.hpp"
#include "groups/member.hpp"
#include "paceline/paceline.hpp"

namespace {

namespace v1 = paceline::v1;
using paceline::Assignor;
using paceline::detail::Clock;
using paceline::detail::Failure;
using paceline::detail::make_failure;
using paceline::detail::Member;
using paceline::detail::Subscriber;
using Refused = paceline::detail::Member::Refused;

std::vector<std::string> assigned(Assignor assignor, const std::vector<Subscriber>& members,
                                  const paceline::detail::PartitionCounts& counts) {
  std::vector<std::string> lines;
  for (const auto& [member, partitions] : paceline::detail::assign(assignor, members, counts)) {
    auto line = member + ":";
    for (const auto& at : partitions) line += " " + at.topic + "-" + std::to_string(at.partition);
    lines.push_back(line);
  }
  return lines;
}

using Lines = std::vector<std::string>;

Failure failure(paceline::ErrorCode code) { return make_failure("testing", code, "no"); }

Member joined() {
  Member member(Clock::now());
  member.join_sent();
  member.joined("m", 3);
  member.synced();
  return member;
}

}  // namespace

TEST_CASE("range divides each topic by itself") {
  const std::vector<Subscriber> members{{"c1", "", {"t0", "t1"}}, {"c0", "", {"t0", "t1"}}};
  CHECK(assigned(Assignor::range, members, {{"t0", 3}, {"t1", 3}}) == Lines{"c0: t0-0 t0-1 t1-0 t1-1", "c1: t0-2 t1-2"});
}

TEST_CASE("roundrobin deals the partitions of all topics in turn") {
  const std::vector<Subscriber> members{{"c1", "", {"t0", "t1"}}, {"c0", "", {"t0", "t1"}}};
  CHECK(assigned(Assignor::round_robin, members, {{"t0", 3}, {"t1", 3}}) ==
        Lines{"c0: t0-0 t0-2 t1-1", "c1: t0-1 t1-0 t1-2"});
}

TEST_CASE("members get partitions of their own topics only") {
  const std::vector<Subscriber> members{{"a", "", {"t0"}}, {"b", "", {"t0", "t1"}}, {"c", "", {"t2"}}};
  for (const auto assignor : {Assignor::range, Assignor::round_robin})
    CHECK(assigned(assignor, members, {{"t0", 2}, {"t1", 2}, {"other", 9}}) == Lines{"a: t0-0", "b: t0-1 t1-0 t1-1", "c:"});
}

TEST_CASE("static members come first in the order of their instance ids") {
  const std::vector<Subscriber> members{{"a", "", {"t"}}, {"y", "2", {"t"}}, {"z", "1", {"t"}}};
  CHECK(assigned(Assignor::range, members, {{"t", 4}}) == Lines{"a: t-3", "y: t-2", "z: t-0 t-1"});
}

TEST_CASE("more members than partitions leave members without any") {
  const std::vector<Subscriber> members{{"a", "", {"t"}}, {"b", "", {"t"}}};
  CHECK(assigned(Assignor::range, members, {{"t", 1}}) == Lines{"a: t-0", "b:"});
  CHECK(assigned(Assignor::round_robin, members, {}) == Lines{"a:", "b:"});
}

TEST_CASE("assignors have the names of all languages") {
  CHECK(paceline::assignor_named("roundrobin") == Assignor::round_robin);
  CHECK(paceline::assignor_name(Assignor::range) == "range");
  CHECK_THROWS_AS(paceline::assignor_named("sticky"), std::invalid_argument);
}

TEST_CASE("a new member joins with the id that the coordinator gives") {
  Member member(Clock::now());
  CHECK(member.needs_join());
  auto required = failure(v1::ERROR_CODE_MEMBER_ID_REQUIRED);
  CHECK(member.join_refused(required) == Refused::fail);
  required.member_id = "given";
  CHECK(member.join_refused(required) == Refused::join_now);
  CHECK(member.id() == "given");
}

TEST_CASE("heartbeats are due from the answer of JoinGroup on") {
  Member member(Clock::now());
  member.join_sent();
  CHECK_FALSE(member.beating());
  member.joined("m", 1);
  CHECK(member.beating() == 1);
  member.join_sent();
  CHECK_FALSE(member.beating());
}

TEST_CASE("a rebalance makes the member join again, and its partitions are not lost") {
  auto member = joined();
  CHECK_FALSE(member.needs_join());
  CHECK(member.heartbeat_refused(3, failure(v1::ERROR_CODE_REBALANCE_IN_PROGRESS)));
  CHECK(member.needs_join());
  CHECK_FALSE(member.take_lost());
  CHECK(member.generation() == 3);
}

TEST_CASE("a lost membership is reported once and keeps its id only after an illegal generation") {
  for (const auto& [code, id] : {std::pair(v1::ERROR_CODE_ILLEGAL_GENERATION, "m"), {v1::ERROR_CODE_UNKNOWN_MEMBER_ID, ""}}) {
    auto member = joined();
    CHECK(member.heartbeat_refused(3, failure(code)));
    CHECK(member.id() == id);
    CHECK_FALSE(member.generation());
    CHECK(member.needs_join());
    CHECK(member.take_lost());
    CHECK_FALSE(member.take_lost());
  }
}

TEST_CASE("a refusal of an earlier generation changes nothing") {
  auto member = joined();
  CHECK(member.heartbeat_refused(2, failure(v1::ERROR_CODE_UNKNOWN_MEMBER_ID)));
  CHECK(member.generation() == 3);
  CHECK_FALSE(member.needs_join());
}

TEST_CASE("a heartbeat without an answer is sent again") {
  auto member = joined();
  CHECK_FALSE(member.heartbeat_refused(3, failure(v1::ERROR_CODE_NOT_COORDINATOR)));
  CHECK(member.beating() == 3);
}

TEST_CASE("a fenced member never joins again") {
  auto beating = joined();
  CHECK(beating.heartbeat_refused(3, failure(v1::ERROR_CODE_FENCED_INSTANCE_ID)));
  CHECK(beating.fatal()->code == v1::ERROR_CODE_FENCED_INSTANCE_ID);
  auto joining = joined();
  CHECK(joining.join_refused(failure(v1::ERROR_CODE_FENCED_INSTANCE_ID)) == Refused::fail);
  CHECK(joining.fatal());
}

TEST_CASE("refused joins are repeated unless another try cannot help") {
  for (const auto code : {v1::ERROR_CODE_REBALANCE_IN_PROGRESS, v1::ERROR_CODE_ILLEGAL_GENERATION,
                          v1::ERROR_CODE_NOT_COORDINATOR, v1::ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS}) {
    auto member = joined();
    CHECK(member.join_refused(failure(code)) == Refused::join_later);
    CHECK(member.id() == "m");
  }
  auto unknown = joined();
  CHECK(unknown.join_refused(failure(v1::ERROR_CODE_UNKNOWN_MEMBER_ID)) == Refused::join_later);
  CHECK(unknown.id().empty());
  for (const auto code : {v1::ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL, v1::ERROR_CODE_GROUP_MAX_SIZE_REACHED,
                          v1::ERROR_CODE_INVALID_SESSION_TIMEOUT, v1::ERROR_CODE_INVALID_GROUP_ID})
    CHECK(joined().join_refused(failure(code)) == Refused::fail);
}

TEST_CASE("a membership that is lost while it syncs is joined again") {
  auto member = joined();
  member.lose();
  member.synced();
  CHECK(member.needs_join());
}

TEST_CASE("a program that polls is never idle") {
  const auto begin = Clock::now();
  const auto later = begin + std::chrono::seconds(10);
  Member member(begin);
  CHECK(member.idle(later) == std::chrono::seconds(10));
  member.set_polling(true, begin);
  CHECK(member.idle(later) == std::chrono::seconds(0));
  member.set_polling(false, begin);
  CHECK(member.idle(later) == std::chrono::seconds(10));
}

TEST_CASE("settings of a group that cannot work are refused") {
  const paceline::Client client({.bootstrap = {"127.0.0.1:1"}});
  using Config = paceline::GroupConfig;
  const auto refused = [&](void (*change)(Config&)) {
    Config config;
    config.group_id = "g";
    change(config);
    CHECK_THROWS_AS(client.make_group_consumer(config), std::invalid_argument);
  };
  refused([](Config& config) { config.group_id.clear(); });
  refused([](Config& config) { config.heartbeat_interval = config.session_timeout; });
  refused([](Config& config) { config.heartbeat_interval = std::chrono::milliseconds(0); });
  refused([](Config& config) { config.max_poll_interval = std::chrono::milliseconds(0); });
  refused([](Config& config) { config.assignors.clear(); });
  refused([](Config& config) { config.assignors.push_back(Assignor::range); });
}

TEST_CASE("a consumer that is in no generation refuses a commit, and polls need topics") {
  const paceline::Client client({.bootstrap = {"127.0.0.1:1"}});
  paceline::GroupConfig config;
  config.group_id = "g";
  auto consumer = client.make_group_consumer(config);
  CHECK_THROWS_AS(consumer.commit({{{"t", 0}, {5}}}), paceline::CommitFailedError);
  CHECK_THROWS_AS(consumer.poll(std::chrono::milliseconds(1)), std::logic_error);
  CHECK_THROWS_AS(consumer.seek("t", 0, 1), std::invalid_argument);
  consumer.close();
  CHECK_THROWS_AS(consumer.assignment(), std::logic_error);
}
