// A broker on real gRPC in this process: the same logs in memory for every topic name, and faults that a test plans.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "paceline/v1/log_service.grpc.pb.h"
#include "paceline/v1/metadata_service.grpc.pb.h"

class FakeBroker final : public paceline::v1::MetadataService::Service, public paceline::v1::LogService::Service {
public:
  /// Serves a coordinator of groups, too, if there is one.
  explicit FakeBroker(int partition_count, grpc::Service* coordinator = nullptr)
      : logs(static_cast<std::size_t>(partition_count)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<paceline::v1::MetadataService::Service*>(this));
    builder.RegisterService(static_cast<paceline::v1::LogService::Service*>(this));
    if (coordinator != nullptr) builder.RegisterService(coordinator);
    server_ = builder.BuildAndStart();
  }
  ~FakeBroker() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }

  std::mutex mutex;
  /// Records by partition; the offset of a record is its index.
  std::vector<std::vector<paceline::v1::Record>> logs;
  /// Deletes the topic and creates it again with these logs and this leader epoch.
  void create_again(std::vector<std::vector<paceline::v1::Record>> new_logs, int epoch = 0) {
    const std::lock_guard lock(mutex);
    logs = std::move(new_logs);
    topic_id += "-again";
    leader_epoch = epoch;
  }
  std::string topic_id = "topic-id";
  int leader_epoch = 0;
  std::set<int> leaderless;
  /// Names of topics that do not exist.
  std::set<std::string> missing_topics;
  /// Changes the next answers of DescribeTopics, one each.
  std::deque<std::function<void(paceline::v1::TopicDescription&)>> on_describe;
  std::vector<paceline::v1::ProduceRequest> produced;
  /// Answers of the next Produce calls, per partition, in the place of an append.
  std::deque<paceline::v1::ErrorCode> refusals;
  /// Number of records from which a batch is too large.
  int too_many_records = 1'000'000;
  /// Append, then answer the next Produce calls with DEADLINE_EXCEEDED.
  int lost_answers = 0;
  /// Changes the results of Fetch.
  std::function<void(paceline::v1::FetchPartitionResult&, const paceline::v1::FetchPartition&)> on_fetch;
  /// Requests of WatchEvents; each gets one event, and the end of the stream.
  std::vector<paceline::v1::WatchEventsRequest> watches;
  /// Called after an answer of ListOffsets, before it is sent.
  std::function<void()> on_listed;
  /// Number of DescribeTopics calls.
  int descriptions = 0;
  /// Pause before each answer of ListOffsets.
  std::chrono::milliseconds list_pause{0};

private:
  grpc::Status DescribeCluster(grpc::ServerContext*, const paceline::v1::DescribeClusterRequest*,
                               paceline::v1::DescribeClusterResponse* response) override {
    auto& broker = *response->add_brokers();
    broker.set_id(1);
    broker.set_host("127.0.0.1");
    broker.set_port(port_);
    response->set_controller_host("127.0.0.1");
    response->set_controller_port(port_);
    return grpc::Status::OK;
  }

  grpc::Status WatchEvents(grpc::ServerContext*, const paceline::v1::WatchEventsRequest* request,
                           grpc::ServerWriter<paceline::v1::WatchEventsResponse>* writer) override {
    paceline::v1::WatchEventsResponse response;
    {
      const std::lock_guard lock(mutex);
      watches.push_back(*request);
      response.mutable_batch()->set_cursor("cursor-" + std::to_string(watches.size()));
      response.mutable_batch()->add_events()->set_time_ms(4'000'000'000'000);
    }
    writer->Write(response);
    return grpc::Status::OK;
  }

  grpc::Status DescribeTopics(grpc::ServerContext*, const paceline::v1::DescribeTopicsRequest* request,
                              paceline::v1::DescribeTopicsResponse* response) override {
    const std::lock_guard lock(mutex);
    ++descriptions;
    for (const auto& name : request->topics()) {
      auto& topic = *response->add_topics();
      topic.set_name(name);
      if (missing_topics.contains(name)) {
        topic.mutable_error()->set_code(paceline::v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION);
        continue;
      }
      topic.set_topic_id(topic_id);
      for (int i = 0; i < static_cast<int>(logs.size()); ++i) {
        auto& partition = *topic.add_partitions();
        partition.set_partition(i);
        partition.set_leader_epoch(leader_epoch);
        if (!leaderless.contains(i)) partition.set_leader(1);
      }
    }
    if (!on_describe.empty()) {
      on_describe.front()(*response->mutable_topics(0));
      on_describe.pop_front();
    }
    return grpc::Status::OK;
  }

  grpc::Status InitProducerId(grpc::ServerContext*, const paceline::v1::InitProducerIdRequest*,
                              paceline::v1::InitProducerIdResponse* response) override {
    const std::lock_guard lock(mutex);
    response->set_producer_id(++last_producer_id_);
    return grpc::Status::OK;
  }

  grpc::Status Produce(grpc::ServerContext*, const paceline::v1::ProduceRequest* request,
                       paceline::v1::ProduceResponse* response) override {
    const std::lock_guard lock(mutex);
    produced.push_back(*request);
    for (const auto& partition : request->partitions()) {
      auto& result = *response->add_partitions();
      if (!refusals.empty()) {
        result.mutable_error()->set_code(refusals.front());
        refusals.pop_front();
        continue;
      }
      const auto& list = partition.records();
      if (list.records_size() >= too_many_records) {
        result.mutable_error()->set_code(paceline::v1::ERROR_CODE_MESSAGE_TOO_LARGE);
        continue;
      }
      const auto key = std::make_tuple(list.producer_id(), partition.partition(), list.base_sequence());
      auto& log = logs.at(static_cast<std::size_t>(partition.partition()));
      const auto [known, is_new] = appended_.try_emplace(key, static_cast<std::int64_t>(log.size()));
      if (is_new)
        for (const auto& record : list.records()) log.push_back(record);
      result.set_base_offset(known->second);
    }
    if (lost_answers > 0) {
      --lost_answers;
      return {grpc::DEADLINE_EXCEEDED, "the answer is lost"};
    }
    return grpc::Status::OK;
  }

  grpc::Status Fetch(grpc::ServerContext* context, const paceline::v1::FetchRequest* request,
                     paceline::v1::FetchResponse* response) override {
    bool has_records = false;
    {
      const std::lock_guard lock(mutex);
      for (const auto& partition : request->partitions()) {
        auto& result = *response->add_partitions();
        if (partition.topic_id() != topic_id) {
          result.mutable_error()->set_code(paceline::v1::ERROR_CODE_INCONSISTENT_TOPIC_ID);
          has_records = true;
          continue;
        }
        result.mutable_records();
        const auto& log = logs.at(static_cast<std::size_t>(partition.partition()));
        for (auto offset = static_cast<std::size_t>(partition.fetch_offset()); offset < log.size(); ++offset) {
          auto& record = *result.mutable_records()->add_records();
          record = log[offset];
          record.set_offset(static_cast<std::int64_t>(offset));
          has_records = true;
        }
        if (on_fetch) on_fetch(result, partition);
        has_records = has_records || result.has_error() || result.has_diverging_epoch();
      }
    }
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(request->max_wait_ms());
    while (!has_records && !context->IsCancelled() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return grpc::Status::OK;
  }

  grpc::Status ListOffsets(grpc::ServerContext* context, const paceline::v1::ListOffsetsRequest* request,
                           paceline::v1::ListOffsetsResponse* response) override {
    const auto begin = std::chrono::steady_clock::now();
    const auto must_wait = [&] {
      const std::lock_guard lock(mutex);
      return !context->IsCancelled() && std::chrono::steady_clock::now() < begin + list_pause;
    };
    while (must_wait()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::lock_guard lock(mutex);
    for (const auto& partition : request->partitions()) {
      if (partition.current_leader_epoch() > leader_epoch) {
        response->add_partitions()->mutable_error()->set_code(paceline::v1::ERROR_CODE_UNKNOWN_LEADER_EPOCH);
        continue;
      }
      if (partition.spec() == paceline::v1::OFFSET_SPEC_TIMESTAMP) {
        // No record is that young; one is written right after the answer.
        response->add_partitions();
        logs.at(static_cast<std::size_t>(partition.partition())).emplace_back();
        continue;
      }
      const bool is_latest = partition.spec() == paceline::v1::OFFSET_SPEC_LATEST;
      const auto end = static_cast<std::int64_t>(logs.at(static_cast<std::size_t>(partition.partition())).size());
      response->add_partitions()->set_offset(is_latest ? end : 0);
    }
    if (on_listed) std::exchange(on_listed, nullptr)();
    return grpc::Status::OK;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::int64_t last_producer_id_ = 0;
  std::map<std::tuple<std::int64_t, std::int32_t, std::int32_t>, std::int64_t> appended_;
};
