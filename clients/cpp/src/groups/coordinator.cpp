#include "groups/coordinator.hpp"

#include <optional>

namespace paceline::detail {

namespace {

/// Limit of one question, so that a broker that hangs does not use up the time of a call.
constexpr milliseconds ask_timeout{5'000};

}  // namespace

Coordinator::Coordinator(std::shared_ptr<Cluster> cluster, std::string group_id)
    : cluster_(std::move(cluster)), group_id_(std::move(group_id)) {}

/// Returns the address of the coordinator. Throws an Error that is definite: the call for which it is wanted was not sent.
std::string Coordinator::find_definitely(const Context& context) {
  try {
    return find(context.within(cluster_->request_timeout()));
  } catch (const Error& error) {
    auto failure = error.failure();
    failure.definite = true;
    throw Error(std::move(failure));
  }
}

std::string Coordinator::find(const Context& context) {
  {
    const std::lock_guard lock(mutex_);
    if (!address_.empty()) return address_;
  }
  const auto operation = "finding the coordinator of group " + group_id_;
  std::optional<Error> last;
  for (const auto& broker : cluster_->brokers(context)) {
    if (last && context.expired()) break;
    v1::FindCoordinatorRequest request;
    request.set_group_id(group_id_);
    v1::FindCoordinatorResponse response;
    const auto stub = v1::GroupService::NewStub(cluster_->channel(broker));
    try {
      invoke(context.within(ask_timeout), operation,
             [&](grpc::ClientContext* call) { return stub->FindCoordinator(call, request, &response); });
    } catch (const Error& error) {
      // Another broker knows no more, and no other broker accepts what this one refuses.
      if (!is_unanswered(error.failure())) throw;
      last = error;
      continue;
    }
    const auto address = join_address(response.host(), response.port());
    if (address.empty())
      throw Error(make_failure(operation, v1::ERROR_CODE_UNKNOWN_SERVER_ERROR, "the answer has no address"));
    const std::lock_guard lock(mutex_);
    return address_ = address;
  }
  if (last) throw *last;
  throw Error(make_failure(operation, v1::ERROR_CODE_COORDINATOR_NOT_AVAILABLE, "no broker is known"));
}

/// Forgets the coordinator when it has moved or cannot be reached.
void Coordinator::note_failure(const Failure& failure) {
  const bool is_still_there =
      failure.code == v1::ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS || failure.code == v1::ERROR_CODE_THROTTLED;
  if (!failure.retriable || is_still_there) return;
  const std::lock_guard lock(mutex_);
  address_.clear();
}

}  // namespace paceline::detail
