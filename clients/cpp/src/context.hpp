// The deadline and the stop token of one call of the library, and the loop that repeats attempts within them.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <utility>

#include <grpcpp/client_context.h>

#include "failure.hpp"
#include "paceline/errors.hpp"
#include "paceline/options.hpp"

namespace paceline::detail {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using std::chrono::milliseconds;

/// An attempt without time for an answer would turn a known failure into an unknown outcome.
inline constexpr milliseconds least_attempt{200};
inline constexpr milliseconds longest_timeout = std::chrono::hours(24 * 365);

/// How long brokers may not know a topic that a caller names: a new topic needs a moment to reach them.
inline constexpr milliseconds missing_topic_patience{5'000};

/// Returns a random number below `count`; safe for concurrent use.
inline std::uint32_t random_below(std::uint32_t count) {
  thread_local std::mt19937 generator{std::random_device{}()};
  return std::uniform_int_distribution<std::uint32_t>(0, count - 1)(generator);
}

/// Pauses between attempts: 100 ms, doubled up to 1 s, each shortened by up to 20 % of chance.
class Backoff {
public:
  static constexpr milliseconds first{100};
  static constexpr milliseconds longest{1'000};

  milliseconds next() {
    const auto pause = next_;
    next_ = std::min(next_ * 2, longest);
    return pause - milliseconds(random_below(static_cast<std::uint32_t>(pause.count() / 5)));
  }
  void reset() { next_ = first; }

private:
  milliseconds next_ = first;
};

class Context {
public:
  Context(TimePoint deadline, std::stop_token stop) : deadline_(deadline), stop_(std::move(stop)) {}
  explicit Context(const CallOptions& options)
      : Context(Clock::now() + std::min(options.timeout, longest_timeout), options.stop) {}

  /// Returns a context that also ends after a time.
  Context within(milliseconds timeout) const {
    return {std::min(deadline_, Clock::now() + std::min(timeout, longest_timeout)), stop_};
  }
  TimePoint deadline() const { return deadline_; }
  const std::stop_token& stop() const { return stop_; }
  bool stopped() const { return stop_.stop_requested(); }
  milliseconds remaining() const {
    return std::chrono::duration_cast<milliseconds>(std::max(deadline_ - Clock::now(), Clock::duration::zero()));
  }
  bool expired() const { return Clock::now() >= deadline_; }

  /// How long a server may wait so that its answer arrives before the deadline.
  std::int32_t server_wait_ms() const { return server_wait_ms(deadline_); }
  static std::int32_t server_wait_ms(TimePoint deadline) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count() * 8 / 10;
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(left, 1, 600'000));
  }

  /// Returns false when the deadline or a stop ends the pause early.
  bool sleep(milliseconds pause) const {
    std::mutex mutex;
    std::condition_variable_any never;
    std::unique_lock lock(mutex);
    const auto until = std::min(deadline_, Clock::now() + std::min(pause, longest_timeout));
    never.wait_until(lock, stop_, until, [] { return false; });
    return !stopped() && !expired();
  }

private:
  TimePoint deadline_;
  std::stop_token stop_;
};

inline void set_deadline(grpc::ClientContext& call, TimePoint deadline) {
  call.set_deadline(std::chrono::system_clock::now() +
                    std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline - Clock::now()));
}

/// Makes one blocking call. Throws Error, or CancelledError when a stop was requested.
template <class Call>
void invoke(const Context& context, const std::string& operation, Call&& call) {
  grpc::ClientContext client_context;
  set_deadline(client_context, context.deadline());
  const std::stop_callback cancel(context.stop(), [&] { client_context.TryCancel(); });
  const grpc::Status status = std::forward<Call>(call)(&client_context);
  if (status.ok()) return;
  if (context.stopped()) throw CancelledError(operation + ": a stop was requested");
  throw Error(call_failure(operation, status));
}

/// Repeats an attempt until it succeeds, fails for good or the time ends; then throws the last failure. Throws as well when
/// brokers have answered for `topic_patience` that a topic or partition does not exist.
template <class Attempt>
auto retry(const Context& context, milliseconds request_timeout, Attempt&& attempt,
           milliseconds topic_patience = longest_timeout) {
  Backoff backoff;
  std::optional<Error> last;
  std::optional<TimePoint> missing_since;
  while (true) {
    if (last && context.remaining() < least_attempt) throw *last;
    try {
      return attempt(context.within(request_timeout));
    } catch (const Error& error) {
      if (!error.retriable()) throw;
      if (error.code() == v1::ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION) {
        if (!missing_since) missing_since = Clock::now();
        if (Clock::now() - *missing_since >= topic_patience) throw;
      }
      last = error;
    }
    if (!context.sleep(std::max(last->retry_after(), backoff.next()))) {
      if (context.stopped()) throw CancelledError(last->operation() + ": a stop was requested");
      throw *last;
    }
  }
}

}  // namespace paceline::detail
