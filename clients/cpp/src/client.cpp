#include "paceline/client.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "cluster.hpp"
#include "paceline/v1/admin_service.grpc.pb.h"
#include "text.hpp"

namespace paceline {

namespace {

using detail::check_utf8;
using detail::Context;
using detail::make_failure;
using detail::milliseconds;

/// Runs an administrative call at the active controller and follows the address in NOT_CONTROLLER. A call whose outcome is
/// unknown is not repeated: the change may have been made.
template <class Call>
void on_controller(detail::Cluster& cluster, const CallOptions& options, const std::string& operation, Call&& call) {
  std::string address;
  // One attempt may take the whole time: the controller waits until the change has taken effect.
  detail::retry(Context(options), options.timeout, [&](const Context& attempt) {
    if (address.empty()) {
      cluster.describe(attempt.within(cluster.request_timeout()));
      address = cluster.controller();
      if (address.empty())
        throw Error(make_failure(operation, v1::ERROR_CODE_NOT_CONTROLLER, "no controller is active"));
    }
    try {
      call(attempt, *v1::AdminService::NewStub(cluster.channel(address)));
    } catch (const Error& error) {
      auto failure = error.failure();
      if (failure.refresh) address = failure.controller;
      failure.retriable = failure.retriable && failure.definite;
      throw Error(std::move(failure));
    }
  });
}

/// Throws the error of the one result of an answer.
template <class Response>
const auto& only_result(const Response& response, const std::string& operation) {
  if (response.topics_size() != 1)
    throw Error(make_failure(operation, v1::ERROR_CODE_UNKNOWN_SERVER_ERROR, "the response does not have exactly one topic"));
  const auto& result = response.topics(0);
  if (result.has_error()) throw Error(detail::topic_failure(operation, result.error()));
  return result;
}

}  // namespace

Client::Client(ClientConfig config) : cluster_(std::make_shared<detail::Cluster>(std::move(config))) {}

Producer Client::make_producer(ProducerConfig config) const { return Producer(cluster_, config); }

Consumer Client::make_consumer(ConsumerConfig config) const { return Consumer(cluster_, config); }

GroupConsumer Client::make_group_consumer(GroupConfig config) const { return GroupConsumer(cluster_, std::move(config)); }

std::string Client::create_topic(const NewTopic& topic, const CallOptions& options) {
  check_utf8("NewTopic::name", topic.name);
  for (const auto& [key, value] : topic.configs) {
    check_utf8("a key of NewTopic::configs", key);
    check_utf8("NewTopic::configs of " + key, value);
  }
  const auto operation = "creating topic " + topic.name;
  v1::CreateTopicsRequest request;
  auto& wanted = *request.add_topics();
  wanted.set_name(topic.name);
  if (topic.partitions != 0) wanted.set_partitions(topic.partitions);
  if (topic.replication_factor != 0) wanted.set_replication_factor(topic.replication_factor);
  for (const auto& [key, value] : topic.configs) (*wanted.mutable_configs())[key] = value;
  std::string id;
  on_controller(*cluster_, options, operation, [&](const Context& attempt, v1::AdminService::Stub& admin) {
    v1::CreateTopicsResponse response;
    request.set_timeout_ms(attempt.server_wait_ms());
    invoke(attempt, operation, [&](grpc::ClientContext* call) { return admin.CreateTopics(call, request, &response); });
    id = only_result(response, operation).topic_id();
  });
  return id;
}

void Client::delete_topic(const std::string& name, const CallOptions& options) {
  check_utf8("the topic", name);
  const auto operation = "deleting topic " + name;
  v1::DeleteTopicsRequest request;
  request.add_topics(name);
  on_controller(*cluster_, options, operation, [&](const Context& attempt, v1::AdminService::Stub& admin) {
    v1::DeleteTopicsResponse response;
    request.set_timeout_ms(attempt.server_wait_ms());
    invoke(attempt, operation, [&](grpc::ClientContext* call) { return admin.DeleteTopics(call, request, &response); });
    only_result(response, operation);
  });
}

TopicDescription Client::describe_topic(const std::string& name, const CallOptions& options) {
  const auto found = detail::retry(Context(options), cluster_->request_timeout(), [&](const Context& attempt) {
    cluster_->describe(attempt);
    return cluster_->describe_topic(attempt, name);
  });
  TopicDescription description{found.name(), found.topic_id(), {}};
  for (const auto& partition : found.partitions()) {
    description.partitions.push_back({partition.partition(),
                                      partition.has_leader() ? std::optional(partition.leader()) : std::nullopt,
                                      partition.leader_epoch(),
                                      {partition.replicas().begin(), partition.replicas().end()},
                                      {partition.isr().begin(), partition.isr().end()}});
  }
  return description;
}

ClusterDescription Client::describe_cluster(const CallOptions& options) {
  const auto found = detail::retry(Context(options), cluster_->request_timeout(),
                                   [&](const Context& attempt) { return cluster_->describe(attempt); });
  ClusterDescription description;
  description.cluster_id = found.cluster_id();
  for (const auto& broker : found.brokers())
    description.brokers.push_back({broker.id(), detail::join_address(broker.host(), broker.port()), broker.rack()});
  if (found.has_controller_id()) description.controller_id = found.controller_id();
  description.controller_address = detail::join_address(found.controller_host(), found.controller_port());
  return description;
}

std::optional<std::int64_t> Client::list_offset(const std::string& topic, std::int32_t partition, OffsetSpec at,
                                                const CallOptions& options) {
  return cluster_->list_offset(Context(options), topic, partition, at);
}

void Client::watch_events(const std::function<void(const v1::EventBatch&)>& handle, std::stop_token stop) {
  const Context context(CallOptions{detail::longest_timeout, stop});
  std::string cursor;
  // Time of the last event, where a controller begins that does not know the cursor.
  std::int64_t since_ms =
      std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  detail::Backoff backoff;
  while (!context.stopped()) {
    std::string address;
    try {
      cluster_->describe(context.within(cluster_->request_timeout()));
      address = cluster_->controller();
    } catch (const CancelledError&) {
      return;
    } catch (const Error& error) {
      if (!error.retriable()) throw;
    }
    if (!address.empty()) {
      grpc::ClientContext call;
      const std::stop_callback cancel(stop, [&] { call.TryCancel(); });
      v1::WatchEventsRequest request;
      request.set_cursor(cursor);
      if (!cursor.empty()) request.set_since_ms(since_ms);
      request.set_active_controller_only(true);
      const auto stub = v1::MetadataService::NewStub(cluster_->channel(address));
      const auto stream = stub->WatchEvents(&call, request);
      v1::WatchEventsResponse response;
      try {
        while (stream->Read(&response)) {
          backoff.reset();
          cursor = response.batch().cursor();
          for (const auto& event : response.batch().events()) since_ms = std::max(since_ms, event.time_ms());
          if (response.batch().events_size() > 0 || response.batch().has_gap()) handle(response.batch());
        }
      } catch (...) {
        call.TryCancel();
        stream->Finish();
        throw;
      }
      // A stream that broke is opened again at the controller that is active by then.
      const auto status = stream->Finish();
      if (!status.ok() && !context.stopped()) {
        auto failure = detail::call_failure("watching events", status);
        if (!failure.retriable) throw Error(std::move(failure));
      }
    }
    context.sleep(backoff.next());
  }
}

}  // namespace paceline
