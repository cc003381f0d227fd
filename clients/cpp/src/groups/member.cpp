#include "groups/member.hpp"

namespace paceline::detail {

Member::Refused Member::join_refused(const Failure& failure) {
  is_joining_ = false;
  switch (failure.code) {
    case v1::ERROR_CODE_MEMBER_ID_REQUIRED:
      if (failure.member_id.empty()) return Refused::fail;
      id_ = failure.member_id;
      return Refused::join_now;
    case v1::ERROR_CODE_UNKNOWN_MEMBER_ID:
      id_.clear();
      generation_.reset();
      return Refused::join_later;
    case v1::ERROR_CODE_ILLEGAL_GENERATION:
      generation_.reset();
      return Refused::join_later;
    case v1::ERROR_CODE_REBALANCE_IN_PROGRESS:
      return Refused::join_later;
    case v1::ERROR_CODE_FENCED_INSTANCE_ID:
      fatal_ = failure;
      return Refused::fail;
    default:
      return failure.retriable ? Refused::join_later : Refused::fail;
  }
}

bool Member::heartbeat_refused(std::int32_t generation, const Failure& failure) {
  // The refusal may be about an earlier generation.
  if (generation_ != generation) return true;
  switch (failure.code) {
    case v1::ERROR_CODE_REBALANCE_IN_PROGRESS:
      rejoin();
      return true;
    case v1::ERROR_CODE_ILLEGAL_GENERATION:
      lose();
      return true;
    case v1::ERROR_CODE_UNKNOWN_MEMBER_ID:
      lose();
      id_.clear();
      return true;
    case v1::ERROR_CODE_FENCED_INSTANCE_ID:
      lose();
      fatal_ = failure;
      return true;
    default:
      return false;
  }
}

}  // namespace paceline::detail
