// The engine of Consumer: positions, and one long poll per broker that continues between polls.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cluster.hpp"
#include "hindrance.hpp"
#include "paceline/consumer.hpp"
#include "paceline/group_consumer.hpp"

namespace paceline::detail {

class Fetcher {
public:
  Fetcher(std::shared_ptr<Cluster> cluster, ConsumerConfig config, Patience patience = {});
  ~Fetcher();

  void assign(const std::string& topic, std::int32_t partition, std::optional<OffsetSpec> start, std::int64_t offset);
  void assign_topic(const std::string& topic, OffsetSpec start, const CallOptions& options);
  void unassign(const std::string& topic, std::int32_t partition);
  /// Reads a partition from a committed offset, which may name the leader epoch of the record before it.
  void resume(const std::string& topic, std::int32_t partition, std::int64_t offset, std::optional<std::int32_t> epoch);
  bool has_partitions() const { return !positions_.empty(); }
  /// Returns the positions after the records that polls have returned, where they are known. Leaves out positions in a
  /// deleted topic: a commit would store them for the topic that was created again with its name.
  Offsets consumed() const;
  /// Has the next poll throw an error.
  void fail_next_poll(Failure failure);
  /// Ends the poll of another thread, or the next one, without records.
  void wake();
  std::optional<std::int64_t> position(const std::string& topic, std::int32_t partition) const;
  std::vector<ConsumedRecord> poll(const Context& context, std::size_t max_records);

private:
  using Name = std::pair<std::string, std::int32_t>;
  struct Call;
  struct Answers;

  struct Position {
    /// The next offset to fetch.
    std::int64_t next = 0;
    /// The offset after the last record that poll returned.
    std::int64_t returned = 0;
    /// Looked up before the first fetch; nothing once the position is known.
    std::optional<OffsetSpec> start{};
    /// The end of the partition before a time is looked up that may have no record: what is written meanwhile is read.
    std::optional<std::int64_t> end{};
    /// The place whose offset was looked up and has not been fetched from yet.
    std::optional<OffsetSpec> looked_up{};
    /// Leader epoch under which records were last read.
    std::optional<std::int32_t> epoch{};
    /// Id of the topic that was last read or asked for an offset; empty before. Another id means that the topic was deleted and created again.
    std::string topic_id{};
    /// Tells answers for an earlier assignment apart.
    std::uint64_t assignment = 0;
    /// Whether a call about this partition is under way.
    bool is_asking = false;
    bool awaits_leader = false;
    TimePoint due{};
    Backoff backoff{};
    Hindrance hindrance{};
  };

  std::vector<ConsumedRecord> give(std::size_t max_records);
  bool take_answers();
  void start_calls();
  std::unique_ptr<Call> make_call(const std::string& address);
  void start(std::unique_ptr<Call> call);
  void run_lookups(const std::stop_token& stop);
  void on_lookup(const std::string& topic, const std::optional<Failure>& failure);
  void on_answer(const Call& call);
  void accept(const Name& name, Position& at, const v1::ListOffsetsPartitionResult& result, const Route& route);
  void accept(const Name& name, Position& at, const v1::FetchPartitionResult& result, const Route& route);
  void on_failure(const Name& name, Position& at, const Failure& failure);
  void reset(Position& at);
  void look_up(Position& at, OffsetSpec start);

  const std::shared_ptr<Cluster> cluster_;
  const ConsumerConfig config_;
  const Patience patience_;
  std::map<Name, Position> positions_;
  std::uint64_t assignments_ = 0;
  /// Records that were read and not returned yet, in the order of each partition.
  std::deque<ConsumedRecord> buffered_;
  /// What the next polls throw.
  std::deque<std::exception_ptr> errors_;
  const std::unique_ptr<Answers> answers_;
  /// Looks for leaders, so that a poll does not wait for brokers that hang. Last: it ends before what it uses.
  std::jthread lookup_thread_;
};

}  // namespace paceline::detail
