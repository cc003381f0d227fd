// Sends the commits of a member one at a time, because concurrent calls on one connection may overtake each other.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "groups/group.hpp"

namespace paceline::detail {

/// Used by the polling thread. Automatic commits run on a background thread, so that polls do not wait for them.
class Commits {
public:
  explicit Commits(Group& group)
      : group_(group), thread_([this](const std::stop_token& stop) { run(stop); }) {}

  bool is_busy() const {
    const std::lock_guard lock(mutex_);
    return waiting_.has_value();
  }

  /// Commits in the background and ignores a failure, because the next commit has these offsets or later ones. Must not be
  /// called while `is_busy`.
  void send(Offsets offsets) {
    const std::lock_guard lock(mutex_);
    waiting_ = std::move(offsets);
    changed_.notify_all();
  }

  /// Waits for the commit in flight, then commits and waits for the answer. Throws Error or CancelledError.
  void sync(const Context& context, const Offsets& offsets) {
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_until(lock, context.stop(), context.deadline(), [this] { return !waiting_; })) {
        if (context.stopped()) throw CancelledError("committing offsets: a stop was requested");
        auto failure = make_failure("committing offsets of group " + group_.config().group_id,
                                    v1::ERROR_CODE_REQUEST_TIMED_OUT, "an earlier commit has not ended");
        failure.definite = true;  // This commit was not sent.
        throw Error(std::move(failure));
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
        // See send().
      }
      lock.lock();
      waiting_.reset();
      changed_.notify_all();
    }
  }

  Group& group_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  /// The background commit that is queued or in flight.
  std::optional<Offsets> waiting_;
  std::jthread thread_;
};

}  // namespace paceline::detail
