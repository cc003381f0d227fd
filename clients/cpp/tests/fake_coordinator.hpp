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
  bool refuses_leaves = false;
  /// Whether the member is the leader, and whether JoinGroup sets skip_assignment.
  bool is_leader = false;
  bool skips_assignment = false;
  /// Fail this many commits with UNAVAILABLE without storing them, then refuse the later commits if `refuses_commits`.
  int lost_commits = 0;
  bool refuses_commits = false;
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
    response->set_leader(is_leader ? response->member_id() : "another member");
    response->set_skip_assignment(skips_assignment);
    if (is_leader) {
      auto& member = *response->add_members();
      member.set_member_id(response->member_id());
      *member.mutable_subscription() = request->protocols(0).subscription();
    }
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
    return refuses_leaves ? grpc::Status(grpc::UNAVAILABLE, "the connection broke") : grpc::Status::OK;
  }

  grpc::Status CommitOffsets(grpc::ServerContext*, const paceline::v1::CommitOffsetsRequest* request,
                             paceline::v1::CommitOffsetsResponse* response) override {
    const std::lock_guard lock(mutex);
    if (lost_commits > 0) {
      --lost_commits;
      return {grpc::UNAVAILABLE, "the connection broke"};
    }
    if (refuses_commits) {
      for (const auto& one : request->offsets()) {
        auto& result = *response->add_partitions();
        result.set_topic(one.topic());
        result.set_partition(one.partition());
        result.mutable_error()->set_code(paceline::v1::ERROR_CODE_ILLEGAL_GENERATION);
      }
      return grpc::Status::OK;
    }
    for (const auto& one : request->offsets()) committed[one.topic() + "/" + std::to_string(one.partition())] = one.offset();
    return grpc::Status::OK;
  }

  grpc::Status FetchOffsets(grpc::ServerContext*, const paceline::v1::FetchOffsetsRequest*,
                            paceline::v1::FetchOffsetsResponse*) override {
    return grpc::Status::OK;
  }
};
