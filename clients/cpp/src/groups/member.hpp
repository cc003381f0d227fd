// State of the membership, shared by the polls, the joining thread and the heartbeats. No I/O; callers pass the time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "context.hpp"
#include "failure.hpp"

namespace paceline::detail {

/// A member has no generation until JoinGroup succeeds. It joins again when the group rebalances. After a lost membership,
/// other members may already own the partitions.
class Member {
public:
  explicit Member(TimePoint now) : last_poll_(now) {}

  const std::string& id() const { return id_; }
  std::optional<std::int32_t> generation() const { return generation_; }
  bool needs_join() const { return needs_join_; }
  /// Why this member can never join again, for example because another process has taken over its instance id.
  const std::optional<Failure>& fatal() const { return fatal_; }
  /// The generation to send heartbeats for; std::nullopt without a generation or while a JoinGroup is in flight.
  std::optional<std::int32_t> beating() const { return is_joining_ ? std::nullopt : generation_; }

  void set_polling(bool is_polling, TimePoint now) {
    is_polling_ = is_polling;
    last_poll_ = now;
  }
  /// Returns how long the program has not polled.
  milliseconds idle(TimePoint now) const {
    return is_polling_ ? milliseconds(0) : std::chrono::duration_cast<milliseconds>(now - last_poll_);
  }

  void rejoin() { needs_join_ = true; }
  void lose() {
    generation_.reset();
    is_lost_ = needs_join_ = true;
  }
  /// Returns whether the membership was lost since the last call.
  bool take_lost() { return std::exchange(is_lost_, false); }
  /// Gives up the membership and returns the member id.
  std::string leave() {
    generation_.reset();
    needs_join_ = true;
    return std::exchange(id_, {});
  }

  void join_sent() { is_joining_ = true; }
  void join_ended() { is_joining_ = false; }
  void joined(const std::string& id, std::int32_t generation) {
    is_joining_ = false;
    id_ = id;
    generation_ = generation;
  }
  /// Records a successful SyncGroup: the member joins again only if the membership was lost meanwhile.
  void synced() { needs_join_ = is_lost_; }

  enum class Refused { join_now, join_later, fail };
  /// Records a refused JoinGroup or SyncGroup, and returns whether and when to join again.
  Refused join_refused(const Failure& failure);

  /// Records a refused heartbeat. Returns true if the next heartbeat can wait for its interval, false if the heartbeat
  /// should be sent again soon.
  bool heartbeat_refused(std::int32_t generation, const Failure& failure);

private:
  std::string id_;
  std::optional<std::int32_t> generation_;
  bool is_joining_ = false;
  bool needs_join_ = true;
  bool is_lost_ = false;
  std::optional<Failure> fatal_;
  bool is_polling_ = false;
  TimePoint last_poll_;
};

}  // namespace paceline::detail
