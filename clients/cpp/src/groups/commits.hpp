// Sends the commits of a member one after the other: calls of one connection may overtake each other.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "groups/group.hpp"

namespace paceline::detail {

/// For the thread that polls. Automatic commits run on a thread of their own, so that polls do not wait for them.
class Commits {
public:
  explicit Commits(Group& group)
      : group_(group), thread_([this](const std::stop_token& stop) { run(stop); }) {}

  bool is_busy() const {
    const std::lock_guard lock(mutex_);
    return waiting_.has_value();
  }

  /// Commits without waiting. A failure is left to the next commit. Not while `is_busy`.
  void send(Offsets offsets) {
    const std::lock_guard lock(mutex_);
    waiting_ = std::move(offsets);
    changed_.notify_all();
  }

  /// Commits after the commit that was sent before, and waits. Throws Error or CancelledError.
  void sync(const Context& context, const Offsets& offsets) {
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_until(lock, context.stop(), context.deadline(), [this] { return !waiting_; })) {
        if (context.stopped()) throw CancelledError("committing offsets: a stop was requested");
        throw Error(make_failure("committing offsets of group " + group_.config().group_id,
                                 v1::ERROR_CODE_REQUEST_TIMED_OUT, "an earlier commit has not ended"));
      }
    }
    group_.commit(context, offsets);
  }

private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return waiting_.has_value(); })) {
      const auto offsets = *waiting_;
      lock.unlock();
      try {
        group_.commit(Context(CallOptions{.stop = stop}), offsets);
      } catch (const std::runtime_error&) {
        // The next commit has these offsets, too, or later ones.
      }
      lock.lock();
      waiting_.reset();
      changed_.notify_all();
    }
  }

  Group& group_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  /// The commit that was sent and has not ended.
  std::optional<Offsets> waiting_;
  std::jthread thread_;
};

}  // namespace paceline::detail
