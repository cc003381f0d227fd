#include "groups/group.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "text.hpp"

namespace paceline::detail {

namespace {

/// How long a failing join is repeated.
constexpr milliseconds patience{30'000};
/// The answer to a JoinGroup may take as long as the longest rebalance timeout of the members; this is the time beyond it.
constexpr milliseconds join_grace{30'000};
constexpr milliseconds sync_timeout{60'000};
constexpr milliseconds heartbeat_retry_pause{200};
/// How often the leader looks for topics that do not exist yet.
constexpr milliseconds missing_topic_pause{5'000};

GroupConfig checked(GroupConfig config) {
  const auto check = [](bool is_good, const char* problem) {
    if (!is_good) throw std::invalid_argument(std::string("GroupConfig: ") + problem);
  };
  constexpr milliseconds longest{std::numeric_limits<std::int32_t>::max()};
  check(!config.group_id.empty(), "group_id is empty");
  check_utf8("GroupConfig::group_id", config.group_id);
  check_utf8("GroupConfig::instance_id", config.instance_id);
  check_utf8("GroupConfig::client_id", config.client_id);
  check(config.heartbeat_interval > milliseconds(0) && config.heartbeat_interval < config.session_timeout,
        "heartbeat_interval must be positive and below session_timeout");
  check(config.session_timeout <= longest, "session_timeout is too long");
  check(config.max_poll_interval > milliseconds(0) && config.max_poll_interval <= longest,
        "max_poll_interval must be positive and below 24 days");
  check(config.metadata_max_age > milliseconds(0), "metadata_max_age must be positive");
  check(!config.assignors.empty(), "a group needs an assignor");
  check(std::set(config.assignors.begin(), config.assignors.end()).size() == config.assignors.size(),
        "an assignor is named twice");
  config.metadata_max_age = std::min(config.metadata_max_age, longest_timeout);
  if (config.auto_commit) config.auto_commit = std::min(*config.auto_commit, longest_timeout);
  return config;
}

Context until_stopped(milliseconds timeout, const std::stop_token& stop) { return Context(CallOptions{timeout, stop}); }

void add(google::protobuf::RepeatedPtrField<v1::TopicPartitions>& topics, const TopicPartition& at) {
  if (topics.empty() || topics.rbegin()->topic() != at.topic) topics.Add()->set_topic(at.topic);
  topics.rbegin()->add_partitions(at.partition);
}

}  // namespace

Group::Group(std::shared_ptr<Cluster> cluster, GroupConfig config, std::function<void()> wake)
    : config_(checked(std::move(config))),
      cluster_(std::move(cluster)),
      wake_(std::move(wake)),
      coordinator_(cluster_, config_.group_id) {}

void Group::rejoin() {
  with_member([](Member& member) { member.rejoin(); });
  wake();
}

PartitionCounts Group::assigned_by() {
  const std::lock_guard lock(mutex_);
  return assigned_by_;
}

// Joining

void Group::check_topics(const std::set<std::string>& topics, const std::stop_token& stop) {
  for (const auto& topic : topics) {
    try {
      cluster_->partition_count(until_stopped(2 * missing_topic_patience, stop), topic);
    } catch (const Error& error) {
      if (error.code() == v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION || !error.retriable()) throw;
      return;
    }
  }
}

Joined Group::join(const std::set<std::string>& topics, const std::stop_token& stop) {
  Backoff backoff;
  auto deadline = Clock::now() + patience;
  try {
    while (true) {
      milliseconds pause{0};
      try {
        const auto joined = join_group(topics, stop);
        // The wait for the other members does not count.
        backoff.reset();
        deadline = Clock::now() + patience;
        auto partitions = sync_group(joined, stop);
        auto committed = fetch_committed(until_stopped(patience, stop), partitions);
        return {std::move(partitions), std::move(committed), topics};
      } catch (const Error& error) {
        const auto next = with_member([&](Member& member) { return member.join_refused(error.failure()); });
        if (next == Member::Refused::join_now) continue;
        if (next == Member::Refused::fail || Clock::now() >= deadline) throw;
        pause = std::max(error.retry_after(), backoff.next());
      }
      until_stopped(longest_timeout, stop).sleep(pause);
      if (stop.stop_requested()) throw CancelledError("joining group " + config_.group_id + ": a stop was requested");
    }
  } catch (...) {
    with_member([](Member& member) {
      member.join_ended();
      member.rejoin();
    });
    throw;
  }
}

v1::JoinGroupResponse Group::join_group(const std::set<std::string>& topics, const std::stop_token& stop) {
  v1::JoinGroupRequest request;
  request.set_group_id(config_.group_id);
  request.set_session_timeout_ms(static_cast<std::int32_t>(config_.session_timeout.count()));
  request.set_rebalance_timeout_ms(static_cast<std::int32_t>(config_.max_poll_interval.count()));
  request.set_member_id(with_member([](Member& member) { return member.id(); }));
  request.set_group_instance_id(config_.instance_id);
  request.set_client_id(config_.client_id);
  for (const auto assignor : config_.assignors) {
    auto& protocol = *request.add_protocols();
    protocol.set_name(std::string(assignor_name(assignor)));
    for (const auto& topic : topics) protocol.mutable_subscription()->add_topics(topic);
  }
  v1::JoinGroupResponse response;
  coordinator_.call(until_stopped(config_.max_poll_interval + join_grace, stop), "joining group " + config_.group_id,
                    [&](v1::GroupService::Stub& stub, grpc::ClientContext* call) {
                      with_member([](Member& member) { member.join_sent(); });
                      return stub.JoinGroup(call, request, &response);
                    });
  with_member([&](Member& member) { member.joined(response.member_id(), response.generation_id()); });
  return response;
}

std::vector<TopicPartition> Group::sync_group(const v1::JoinGroupResponse& joined, const std::stop_token& stop) {
  v1::SyncGroupRequest request;
  PartitionCounts counts;
  if (joined.leader() == joined.member_id()) {
    // A static leader that rejoins assigns nothing, but no other member looks for new partitions (KIP-814).
    counts = count_partitions(joined, stop);
    if (!joined.skip_assignment()) assign(joined, counts, request);
  }
  {
    const std::lock_guard lock(mutex_);
    assigned_by_ = counts;
  }
  request.set_group_id(config_.group_id);
  request.set_generation_id(joined.generation_id());
  request.set_member_id(joined.member_id());
  request.set_group_instance_id(config_.instance_id);
  request.set_protocol_type(joined.protocol_type());
  request.set_protocol_name(joined.protocol_name());
  v1::SyncGroupResponse response;
  coordinator_.call(until_stopped(sync_timeout, stop), "getting the partitions of group " + config_.group_id,
                    [&](v1::GroupService::Stub& stub, grpc::ClientContext* call) {
                      return stub.SyncGroup(call, request, &response);
                    });
  with_member([](Member& member) { member.synced(); });
  std::vector<TopicPartition> partitions;
  for (const auto& topic : response.assignment().partitions())
    for (const auto partition : topic.partitions()) partitions.push_back({topic.topic(), partition});
  return partitions;
}

/// Returns how many partitions the topics of all members have: 0 for a topic that does not exist.
PartitionCounts Group::count_partitions(const v1::JoinGroupResponse& joined, const std::stop_token& stop) {
  std::set<std::string> topics;
  for (const auto& member : joined.members())
    topics.insert(member.subscription().topics().begin(), member.subscription().topics().end());
  auto counts = cluster_->partition_counts(until_stopped(cluster_->request_timeout(), stop), topics);
  for (const auto& topic : topics) counts.try_emplace(topic, 0);
  return counts;
}

/// Assigns the partitions of the topics of all members.
void Group::assign(const v1::JoinGroupResponse& joined, const PartitionCounts& counts, v1::SyncGroupRequest& request) {
  std::vector<Subscriber> members;
  for (const auto& member : joined.members()) {
    const auto& subscribed = member.subscription().topics();
    members.push_back({member.member_id(), member.group_instance_id(), {subscribed.begin(), subscribed.end()}});
  }
  for (const auto& [member_id, partitions] : detail::assign(assignor_named(joined.protocol_name()), members, counts)) {
    auto& assignment = *request.add_assignments();
    assignment.set_member_id(member_id);
    for (const auto& at : partitions) add(*assignment.mutable_assignment()->mutable_partitions(), at);
  }
}

void Group::leave(const Context& context) {
  tell_leave(context, with_member([](Member& member) { return member.leave(); }));
}

void Group::tell_leave(const Context& context, const std::string& member_id) {
  if (member_id.empty() || !config_.instance_id.empty()) return;
  v1::LeaveGroupRequest request;
  request.set_group_id(config_.group_id);
  request.add_members()->set_member_id(member_id);
  v1::LeaveGroupResponse response;
  coordinator_.call(context, "leaving group " + config_.group_id,
                    [&](v1::GroupService::Stub& stub, grpc::ClientContext* call) {
                      return stub.LeaveGroup(call, request, &response);
                    });
}

// Offsets

void Group::commit(const Context& context, const Offsets& offsets) {
  const auto operation = "committing offsets of group " + config_.group_id;
  v1::CommitOffsetsRequest request;
  request.set_group_id(config_.group_id);
  request.set_group_instance_id(config_.instance_id);
  for (const auto& [at, committed] : offsets) {
    check_utf8("the topic", at.topic);
    check_utf8("CommittedOffset::metadata", committed.metadata);
    auto& offset = *request.add_offsets();
    offset.set_topic(at.topic);
    offset.set_partition(at.partition);
    offset.set_offset(committed.offset);
    offset.set_metadata(committed.metadata);
    if (committed.leader_epoch) offset.set_leader_epoch(*committed.leader_epoch);
  }
  const auto generation = with_member([&](Member& member) {
    request.set_member_id(member.id());
    return member.generation();
  });
  // As a caller that is no member, an earlier owner could overwrite what the present owner of a partition has committed.
  if (!generation) throw CommitFailedError(operation, "this consumer is in no generation of the group");
  request.set_generation_id(*generation);
  bool may_be_done = false;
  try {
    retry(context, cluster_->request_timeout(), [&](const Context& attempt) {
      try {
        commit_once(attempt, operation, request);
      } catch (const Error& error) {
        // An attempt before the last may have been carried out.
        auto failure = error.failure();
        may_be_done = may_be_done || !failure.definite;
        failure.definite = !may_be_done;
        throw Error(std::move(failure));
      }
    });
  } catch (const Error& error) {
    if (error.code() != v1::ERROR_CODE_UNKNOWN_MEMBER_ID && error.code() != v1::ERROR_CODE_ILLEGAL_GENERATION) throw;
    throw CommitFailedError(operation, code_name(error.code()) + ": " + error.failure().message, error.definite());
  }
}

void Group::commit_once(const Context& context, const std::string& operation, const v1::CommitOffsetsRequest& request) {
  v1::CommitOffsetsResponse response;
  coordinator_.call(context, operation, [&](v1::GroupService::Stub& stub, grpc::ClientContext* call) {
    return stub.CommitOffsets(call, request, &response);
  });
  const auto& results = response.partitions();
  const auto refused = std::find_if(results.begin(), results.end(), [](const auto& one) { return one.has_error(); });
  if (refused == results.end()) return;
  auto failure = partition_failure(operation + ", " + refused->topic() + "/" + std::to_string(refused->partition()),
                                   refused->error());
  // The offsets of the other partitions were committed.
  const bool is_part = std::any_of(results.begin(), results.end(), [](const auto& one) { return !one.has_error(); });
  failure.definite = failure.definite && !is_part;
  throw Error(std::move(failure));
}

Offsets Group::fetch_committed(const Context& context, const std::vector<TopicPartition>& partitions) {
  // A request without partitions would ask for all offsets of the group.
  if (partitions.empty()) return {};
  v1::FetchOffsetsRequest request;
  request.set_group_id(config_.group_id);
  for (const auto& at : partitions) {
    check_utf8("the topic", at.topic);
    add(*request.mutable_partitions(), at);
  }
  v1::FetchOffsetsResponse response;
  retry(context, cluster_->request_timeout(), [&](const Context& attempt) {
    coordinator_.call(attempt, "reading committed offsets of group " + config_.group_id,
                      [&](v1::GroupService::Stub& stub, grpc::ClientContext* call) {
                        return stub.FetchOffsets(call, request, &response);
                      });
  });
  Offsets offsets;
  for (const auto& found : response.partitions()) {
    if (!found.has_offset()) continue;
    const auto epoch = found.has_leader_epoch() ? std::optional(found.leader_epoch()) : std::nullopt;
    offsets[{found.topic(), found.partition()}] = {found.offset(), found.metadata(), epoch};
  }
  return offsets;
}

// Between polls

void Group::beat(const std::stop_token& stop) {
  auto pause = config_.heartbeat_interval;
  while (until_stopped(longest_timeout, stop).sleep(pause), !stop.stop_requested()) {
    pause = config_.heartbeat_interval;
    const auto generation = with_member([](Member& member) { return member.beating(); });
    if (!generation) continue;
    try {
      if (with_member([](Member& member) { return member.idle(Clock::now()); }) > config_.max_poll_interval)
        leave_idle(stop);
      else
        heartbeat(*generation, stop);
    } catch (const CancelledError&) {
      return;
    } catch (const Error& error) {
      const bool is_settled =
          with_member([&](Member& member) { return member.heartbeat_refused(*generation, error.failure()); });
      if (!is_settled) pause = std::min(pause, heartbeat_retry_pause);
      wake();
    }
  }
}

void Group::leave_idle(const std::stop_token& stop) {
  // The loss is noted before the call: the program may poll, and join again, before the answer arrives.
  const auto member_id = with_member([](Member& member) {
    member.lose();
    return member.leave();
  });
  wake();
  try {
    tell_leave(until_stopped(config_.session_timeout / 2, stop), member_id);
  } catch (const Error&) {
    // The session timeout ends the membership.
  }
}

void Group::heartbeat(std::int32_t generation, const std::stop_token& stop) {
  v1::HeartbeatRequest request;
  request.set_group_id(config_.group_id);
  request.set_generation_id(generation);
  request.set_member_id(with_member([](Member& member) { return member.id(); }));
  request.set_group_instance_id(config_.instance_id);
  const auto limit = std::max(milliseconds(500), std::min(config_.session_timeout / 3, config_.heartbeat_interval * 2));
  v1::HeartbeatResponse response;
  coordinator_.call(until_stopped(limit, stop), "heartbeat of group " + config_.group_id,
                    [&](v1::GroupService::Stub& stub, grpc::ClientContext* call) {
                      return stub.Heartbeat(call, request, &response);
                    });
}

void Group::watch_topics(const std::stop_token& stop) {
  while (true) {
    auto before = assigned_by();
    const bool has_missing =
        std::any_of(before.begin(), before.end(), [](const auto& topic) { return topic.second == 0; });
    const auto longest = config_.metadata_max_age;
    until_stopped(longest_timeout, stop).sleep(has_missing ? std::min(longest, missing_topic_pause) : longest);
    if (stop.stop_requested()) return;
    before = assigned_by();
    std::set<std::string> topics;
    for (const auto& [topic, count] : before) topics.insert(topic);
    try {
      auto now = cluster_->partition_counts(until_stopped(cluster_->request_timeout(), stop), topics);
      for (const auto& topic : topics) now.try_emplace(topic, 0);
      if (now != before && before == assigned_by()) rejoin();
    } catch (const std::runtime_error&) {
      // The next look makes up for this one.
    }
  }
}

}  // namespace paceline::detail
