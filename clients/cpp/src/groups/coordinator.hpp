// Finds the coordinator of a group and calls it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cluster.hpp"
#include "paceline/v1/group_service.grpc.pb.h"

namespace paceline::detail {

/// Safe for concurrent use.
class Coordinator {
public:
  Coordinator(std::shared_ptr<Cluster> cluster, std::string group_id);

  /// Calls the coordinator once, after looking up its address if it is not known. `call` receives the stub and gRPC's context
  /// and returns the status. Throws Error, or CancelledError when a stop was requested.
  template <class Call>
  void call(const Context& context, const std::string& operation, Call&& call) {
    const auto address = find_definitely(context);
    const auto stub = v1::GroupService::NewStub(cluster_->channel(address));
    try {
      invoke(context, operation, [&](grpc::ClientContext* client_context) { return call(*stub, client_context); });
    } catch (const Error& error) {
      note_failure(error.failure());
      throw;
    }
  }

private:
  std::string find_definitely(const Context& context);
  std::string find(const Context& context);
  void note_failure(const Failure& failure);

  const std::shared_ptr<Cluster> cluster_;
  const std::string group_id_;
  std::mutex mutex_;
  std::string address_;
};

}  // namespace paceline::detail
