#include "cluster.hpp"

#include <algorithm>
#include <random>
#include <stdexcept>

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include "credentials.hpp"
#include "text.hpp"

namespace paceline::detail {

namespace {

constexpr milliseconds ask_timeout{2'000};
/// How many processes count the partitions of topics, and the limit of each question after the first answer.
constexpr int counting_processes = 3;
constexpr milliseconds ask_again_timeout{1'000};
constexpr int largest_message = 64 * 1024 * 1024;

ClientConfig checked(ClientConfig config) {
  if (config.bootstrap.empty()) throw std::invalid_argument("ClientConfig::bootstrap is empty: name at least one host:port");
  for (const auto& address : config.bootstrap) {
    const auto colon = address.rfind(':');
    const auto port = colon == std::string::npos ? std::string() : address.substr(colon + 1);
    if (colon == 0 || port.empty() || port.find_first_not_of("0123456789") != std::string::npos)
      throw std::invalid_argument("ClientConfig::bootstrap: \"" + address + "\" is not host:port");
  }
  if (config.request_timeout <= milliseconds(0)) throw std::invalid_argument("ClientConfig::request_timeout must be positive");
  return config;
}

void shuffle(std::vector<std::string>& addresses) {
  for (std::size_t i = addresses.size(); i > 1; --i)
    std::swap(addresses[i - 1], addresses[random_below(static_cast<std::uint32_t>(i))]);
}

grpc::ChannelArguments channel_arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(largest_message);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  // gRPC's default back-off grows to two minutes, but a broker restarts within seconds.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  // gRPC's own retries would ignore sequence numbers and leader hints.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // By default the clients of a process share connections; these connections end with their client.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetUserAgentPrefix("paceline-cpp");
  return arguments;
}

}  // namespace

Cluster::Cluster(ClientConfig config, milliseconds metadata_age, milliseconds idle_channel_age)
    : config_(checked(std::move(config))),
      metadata_age_(metadata_age),
      idle_channel_age_(idle_channel_age),
      credentials_(make_credentials(config_.tls)) {
  waiter_ = std::jthread([this] {
    void* tag = nullptr;
    bool is_ok = false;
    while (no_events_.Next(&tag, &is_ok)) continue;
  });
}

Cluster::~Cluster() { no_events_.Shutdown(); }

std::shared_ptr<grpc::Channel> Cluster::channel(const std::string& address) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  // Close connections to addresses that no broker has any more. A call in flight holds its channel.
  std::erase_if(connections_, [&](const auto& entry) {
    return entry.second.channel.use_count() == 1 && now - entry.second.used > idle_channel_age_;
  });
  auto& [channel, used] = connections_[address];
  if (!channel) channel = grpc::CreateCustomChannel(address, credentials_, channel_arguments());
  used = now;
  return channel;
}

/// Calls the known addresses in random order until `wanted` of them have returned a result. If none does, throws the last
/// failure that a server has answered, or the first failure if no server has answered.
template <class Ask>
void Cluster::ask_some(const Context& context, int wanted, Ask&& ask) {
  auto addresses = config_.bootstrap;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, address] : brokers_) addresses.push_back(address);
  }
  std::ranges::sort(addresses);
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  shuffle(addresses);
  std::optional<Error> last;
  int results = 0;
  for (const auto& address : addresses) {
    if (results == wanted || ((last || results > 0) && context.expired())) break;
    try {
      ask(context.within(results > 0 ? ask_again_timeout : ask_timeout), address);
      ++results;
    } catch (const Error& error) {
      if (!last || !is_unanswered(error.failure())) last = error;
    }
  }
  if (results == 0) throw *last;
}

template <class Ask>
void Cluster::ask_any(const Context& context, Ask&& ask) {
  ask_some(context, 1, ask);
}

v1::DescribeClusterResponse Cluster::describe(const Context& context) {
  v1::DescribeClusterResponse found;
  ask_any(context, [&](const Context& attempt, const std::string& address) { found = describe_at(attempt, address); });
  return found;
}

/// Learns the brokers and the controller from one process.
v1::DescribeClusterResponse Cluster::describe_at(const Context& context, const std::string& address) {
  const std::string operation = "describing the cluster";
  v1::DescribeClusterResponse found;
  const auto ask = [&](const Context& attempt, const std::string& process) {
    const auto stub = v1::MetadataService::NewStub(channel(process));
    found.Clear();
    invoke(attempt, operation, [&](grpc::ClientContext* call) { return stub->DescribeCluster(call, {}, &found); });
    if (found.brokers().empty() && found.controller_host().empty())
      throw Error(make_failure(operation, v1::ERROR_CODE_NOT_CONTROLLER, "the process has no metadata of the cluster yet"));
  };
  ask(context, address);
  const auto controller = join_address(found.controller_host(), found.controller_port());
  // A standby controller returns only the address of the active controller.
  if (found.brokers().empty()) ask(context.within(ask_timeout), controller);

  const std::lock_guard lock(mutex_);
  controller_ = controller;
  if (!found.brokers().empty()) {
    brokers_.clear();
    for (const auto& broker : found.brokers()) brokers_[broker.id()] = join_address(broker.host(), broker.port());
  }
  return found;
}

v1::TopicDescription Cluster::describe_topic(const Context& context, const std::string& topic) {
  v1::TopicDescription description;
  ask_any(context, [&](const Context& attempt, const std::string& address) {
    description = describe_topic_at(attempt, address, topic);
  });
  return description;
}

v1::TopicDescription Cluster::describe_topic_at(const Context& context, const std::string& address,
                                                const std::string& topic) {
  check_utf8("the topic", topic);
  const std::string operation = "describing topic " + topic;
  v1::DescribeTopicsRequest request;
  request.add_topics(topic);
  v1::DescribeTopicsResponse response;
  const auto stub = v1::MetadataService::NewStub(channel(address));
  invoke(context, operation, [&](grpc::ClientContext* call) { return stub->DescribeTopics(call, request, &response); });
  if (response.topics_size() != 1)
    throw Error(make_failure(operation, v1::ERROR_CODE_UNKNOWN_SERVER_ERROR, "the response does not have exactly one topic"));
  if (response.topics(0).has_error()) throw Error(topic_failure(operation, response.topics(0).error()));
  return response.topics(0);
}

std::vector<std::string> Cluster::brokers(const Context& context) {
  describe(context);
  std::vector<std::string> addresses;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, address] : brokers_) addresses.push_back(address);
  }
  shuffle(addresses);
  return addresses;
}

std::map<std::string, std::int32_t> Cluster::partition_counts(const Context& context,
                                                              const std::set<std::string>& topics) {
  struct Described {
    int times = 0;
    std::int32_t count = 0;
  };
  std::map<std::string, std::map<std::string, Described>> described;  // by topic and topic id
  std::map<std::string, std::int32_t> counts;
  if (topics.empty()) return counts;
  ask_some(context, counting_processes, [&](const Context& attempt, const std::string& address) {
    for (const auto& [topic, found] : count_partitions_at(attempt, address, topics)) {
      auto& [times, count] = described[topic][found.first];
      ++times;
      // A topic never loses partitions: a broker that returns fewer has outdated metadata.
      count = std::max(count, found.second);
    }
  });
  const std::lock_guard lock(mutex_);
  for (const auto& [topic, ids] : described) {
    const auto& [id, found] = *std::ranges::max_element(ids, {}, [](const auto& one) { return one.second.times; });
    auto& [counted_id, count] = counted_[topic];
    count = counted_id == id ? std::max(count, found.count) : found.count;
    counted_id = id;
    counts[topic] = count;
  }
  return counts;
}

/// Returns topic id and partition count of the topics that one process knows.
std::map<std::string, std::pair<std::string, std::int32_t>> Cluster::count_partitions_at(
    const Context& context, const std::string& address, const std::set<std::string>& topics) {
  // Throws for a process without metadata, to which every topic is unknown.
  describe_at(context, address);
  const auto stub = v1::MetadataService::NewStub(channel(address));
  v1::DescribeTopicsRequest request;
  for (const auto& topic : topics) request.add_topics(topic);
  v1::DescribeTopicsResponse page;
  std::map<std::string, std::pair<std::string, std::int32_t>> found;
  do {
    request.set_page_token(page.next_page_token());
    page.Clear();
    invoke(context, "describing topics",
           [&](grpc::ClientContext* call) { return stub->DescribeTopics(call, request, &page); });
    for (const auto& topic : page.topics()) {
      if (topic.has_error()) continue;
      auto& [id, count] = found[topic.name()];
      id = topic.topic_id();
      count += topic.partitions_size();
    }
  } while (!page.next_page_token().empty());
  return found;
}

void Cluster::refresh(const Context& context, const std::string& topic) {
  v1::TopicDescription description;
  // Ask one process for both: the metadata of an isolated broker may contradict that of other processes.
  ask_any(context, [&](const Context& attempt, const std::string& address) {
    describe_at(attempt, address);
    description = describe_topic_at(attempt, address, topic);
  });
  const std::lock_guard lock(mutex_);
  Topic state{description.topic_id(), description.partitions_size(), {}, Clock::now()};
  for (const auto& partition : description.partitions()) {
    const auto broker = brokers_.find(partition.leader());
    const bool has_leader = partition.has_leader() && broker != brokers_.end();
    state.leaders[partition.partition()] = {has_leader ? broker->second : std::string(), partition.leader_epoch()};
  }
  if (const auto before = topics_.find(topic); before != topics_.end() && before->second.id == state.id) {
    // A broker with outdated metadata returns earlier leaders and fewer partitions; with fewer partitions, records with
    // keys would go to other partitions.
    state.count = std::max(state.count, before->second.count);
    for (const auto& [partition, leader] : before->second.leaders) {
      auto& now = state.leaders.try_emplace(partition, leader).first->second;
      if (now.epoch < leader.epoch) now = leader;
    }
  }
  topics_[topic] = std::move(state);
}

std::int32_t Cluster::partition_count(const Context& context, const std::string& topic) {
  const auto known = [&]() -> std::int32_t {
    const std::lock_guard lock(mutex_);
    const auto found = topics_.find(topic);
    return found == topics_.end() ? 0 : found->second.count;
  };
  auto count = known();
  if (count > 0 && take_old(topic)) {
    try {
      refresh(context.within(ask_timeout), topic);
      count = known();
    } catch (const Error&) {
      // Use the known count while the cluster cannot be reached.
    }
  }
  if (count == 0) {
    retry(context, request_timeout(), [&](const Context& attempt) {
      refresh(attempt, topic);
      count = known();
      if (count == 0)
        throw Error(make_failure("describing topic " + topic, v1::ERROR_CODE_LEADER_NOT_AVAILABLE, "the topic has no partitions yet"));
    }, missing_topic_patience);
  }
  return count;
}

bool Cluster::take_old(const std::string& topic) {
  const std::lock_guard lock(mutex_);
  const auto found = topics_.find(topic);
  if (found == topics_.end() || Clock::now() - found->second.learned <= metadata_age_) return false;
  found->second.learned = Clock::now();
  return true;
}

std::string Cluster::known_topic_id(const std::string& topic) const {
  const std::lock_guard lock(mutex_);
  const auto found = topics_.find(topic);
  return found == topics_.end() ? std::string() : found->second.id;
}

std::optional<Route> Cluster::known_route(const std::string& topic, std::int32_t partition) const {
  const std::lock_guard lock(mutex_);
  const auto found = topics_.find(topic);
  if (found == topics_.end()) return std::nullopt;
  const auto leader = found->second.leaders.find(partition);
  if (leader == found->second.leaders.end() || leader->second.address.empty()) return std::nullopt;
  return Route{leader->second.address, leader->second.epoch, found->second.id};
}

Failure Cluster::missing_route(const std::string& topic, std::int32_t partition) const {
  const auto operation = "finding the leader of " + topic + "/" + std::to_string(partition);
  const std::lock_guard lock(mutex_);
  const auto found = topics_.find(topic);
  if (found != topics_.end() && (partition < 0 || partition >= found->second.count))
    return make_failure(operation, v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
                        "the topic has " + std::to_string(found->second.count) + " partitions");
  return make_failure(operation, v1::ERROR_CODE_LEADER_NOT_AVAILABLE, "the partition has no leader");
}

Route Cluster::route(const Context& context, const std::string& topic, std::int32_t partition) {
  if (auto known = known_route(topic, partition)) return *known;
  refresh(context, topic);
  if (auto known = known_route(topic, partition)) return *known;
  throw Error(missing_route(topic, partition));
}

bool Cluster::learn(const Failure& failure, const std::string& topic, std::int32_t partition) {
  // UNKNOWN_LEADER_EPOCH: the leader's epoch is lower, perhaps because the topic was re-created with the same name.
  if (!failure.refresh && failure.code != v1::ERROR_CODE_UNKNOWN_LEADER_EPOCH) return false;
  const std::lock_guard lock(mutex_);
  const auto found = topics_.find(topic);
  if (found == topics_.end()) return false;
  auto& [id, count, leaders, learned] = found->second;
  const auto known = leaders.find(partition);
  // Keep the epoch, so that outdated metadata cannot restore an earlier leader.
  if (known != leaders.end()) known->second.address.clear();
  if (!failure.leader) return false;
  const auto& hint = *failure.leader;
  const auto address = join_address(hint.host(), hint.port());
  const bool is_same_topic = hint.topic_id().empty() || hint.topic_id() == id;
  // A hint with an older epoch comes from a broker with outdated metadata.
  if (address.empty() || !is_same_topic || (known != leaders.end() && hint.leader_epoch() < known->second.epoch)) return false;
  leaders[partition] = {address, hint.leader_epoch()};
  return true;
}

std::string Cluster::controller() const {
  const std::lock_guard lock(mutex_);
  return controller_;
}

v1::ListOffsetsPartition Cluster::offset_query(const std::string& topic, std::int32_t partition, OffsetSpec at,
                                               std::int32_t leader_epoch) {
  v1::ListOffsetsPartition wanted;
  wanted.set_topic(topic);
  wanted.set_partition(partition);
  wanted.set_current_leader_epoch(leader_epoch);
  switch (at.kind()) {
    case OffsetSpec::Kind::earliest:
      wanted.set_spec(v1::OFFSET_SPEC_EARLIEST);
      break;
    case OffsetSpec::Kind::latest:
      wanted.set_spec(v1::OFFSET_SPEC_LATEST);
      break;
    case OffsetSpec::Kind::timestamp:
      wanted.set_spec(v1::OFFSET_SPEC_TIMESTAMP);
      wanted.set_timestamp_ms(at.time().time_since_epoch().count());
      break;
  }
  return wanted;
}

std::optional<std::int64_t> Cluster::list_offset(const Context& context, const std::string& topic,
                                                 std::int32_t partition, OffsetSpec at) {
  const auto operation = "listing an offset of " + topic + "/" + std::to_string(partition);
  return retry(context, request_timeout(), [&](const Context& attempt) -> std::optional<std::int64_t> {
    const auto leader = route(attempt, topic, partition);
    v1::ListOffsetsRequest request;
    *request.add_partitions() = offset_query(topic, partition, at, leader.leader_epoch);
    const auto stub = v1::LogService::NewStub(channel(leader.address));
    v1::ListOffsetsResponse response;
    try {
      invoke(attempt, operation, [&](grpc::ClientContext* call) { return stub->ListOffsets(call, request, &response); });
      if (response.partitions_size() != 1)
        throw Error(make_failure(operation, v1::ERROR_CODE_UNKNOWN_SERVER_ERROR, "the response does not have exactly one partition"));
      const auto& result = response.partitions(0);
      if (result.has_error()) throw Error(partition_failure(operation, result.error()));
      return result.has_offset() ? std::optional(result.offset()) : std::nullopt;
    } catch (const Error& error) {
      learn(error.failure(), topic, partition);
      throw;
    }
  });
}

}  // namespace paceline::detail
