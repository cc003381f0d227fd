// A coordinator of one group with one member at a time, which gets partition 0 of "rides".
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include <grpcpp/server_context.h>

#include "paceline/v1/group_service.grpc.pb.h"

class FakeCoordinator final : public paceline::v1::GroupService::Service {
public:
  std::mutex mutex;
  /// Port that FindCoordinator names.
  int port = 0;
  int joins = 0;
  int heartbeats = 0;
  int leaves = 0;
  bool holds_leaves = false;
  /// Committed offsets by topic and partition.
  std::map<std::string, std::int64_t> committed;

  int count(int FakeCoordinator::* calls) {
    const std::lock_guard lock(mutex);
    return this->*calls;
  }

private:
  grpc::Status FindCoordinator(grpc::ServerContext*, const paceline::v1::FindCoordinatorRequest*,
                               paceline::v1::FindCoordinatorResponse* response) override {
    const std::lock_guard lock(mutex);
    response->set_host("127.0.0.1");
    response->set_port(port);
    return grpc::Status::OK;
  }

  grpc::Status JoinGroup(grpc::ServerContext*, const paceline::v1::JoinGroupRequest* request,
                         paceline::v1::JoinGroupResponse* response) override {
    const std::lock_guard lock(mutex);
    ++joins;
    response->set_generation_id(joins);
    response->set_protocol_name(request->protocols(0).name());
    response->set_member_id(request->member_id().empty() ? "member-" + std::to_string(joins) : request->member_id());
    response->set_leader("another member");
    return grpc::Status::OK;
  }

  grpc::Status SyncGroup(grpc::ServerContext*, const paceline::v1::SyncGroupRequest*,
                         paceline::v1::SyncGroupResponse* response) override {
    auto& partitions = *response->mutable_assignment()->add_partitions();
    partitions.set_topic("rides");
    partitions.add_partitions(0);
    return grpc::Status::OK;
  }

  grpc::Status Heartbeat(grpc::ServerContext*, const paceline::v1::HeartbeatRequest*,
                         paceline::v1::HeartbeatResponse*) override {
    const std::lock_guard lock(mutex);
    ++heartbeats;
    return grpc::Status::OK;
  }

  grpc::Status LeaveGroup(grpc::ServerContext* context, const paceline::v1::LeaveGroupRequest*,
                          paceline::v1::LeaveGroupResponse*) override {
    std::unique_lock lock(mutex);
    ++leaves;
    while (holds_leaves && !context->IsCancelled()) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      lock.lock();
    }
    return grpc::Status::OK;
  }

  grpc::Status CommitOffsets(grpc::ServerContext*, const paceline::v1::CommitOffsetsRequest* request,
                             paceline::v1::CommitOffsetsResponse*) override {
    const std::lock_guard lock(mutex);
    for (const auto& one : request->offsets()) committed[one.topic() + "/" + std::to_string(one.partition())] = one.offset();
    return grpc::Status::OK;
  }

  grpc::Status FetchOffsets(grpc::ServerContext*, const paceline::v1::FetchOffsetsRequest*,
                            paceline::v1::FetchOffsetsResponse*) override {
    return grpc::Status::OK;
  }
};
