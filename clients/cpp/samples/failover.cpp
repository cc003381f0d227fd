// Writes numbered records while you kill brokers, reads them back, and prints the result as JSON: every acknowledged record
// must be read exactly once and in order. Exits with 3 otherwise.
#include <chrono>
#include <future>
#include <iostream>
#include <thread>
#include <vector>

#include "arguments.hpp"

namespace {

using std::chrono::steady_clock;

constexpr int partitions = 3;

struct Summary {
  std::string topic{};
  int acknowledged = 0;
  int failed = 0;
  int read = 0;
  int lost = 0;
  int doubled = 0;
  int reordered = 0;
  double seconds = 0;

  bool is_good() const { return failed + lost + doubled + reordered == 0; }
  void print() const {
    std::cout << "{\"topic\": \"" << topic << "\", \"acknowledged\": " << acknowledged << ", \"failed\": " << failed
              << ", \"read\": " << read << ", \"lost\": " << lost << ", \"doubled\": " << doubled
              << ", \"reordered\": " << reordered << ", \"seconds\": " << seconds << "}\n";
  }
};

/// Sends the records at a steady rate and returns, for each record, whether it was acknowledged.
std::vector<bool> write(paceline::Client& client, Summary& summary, int count, int rate) {
  auto producer = client.make_producer({.linger = std::chrono::milliseconds(5)});
  const auto begin = steady_clock::now();
  std::vector<std::future<paceline::RecordPlace>> deliveries;
  for (int i = 0; i < count; ++i) {
    deliveries.push_back(producer.send({.topic = summary.topic, .partition = i % partitions, .value = std::to_string(i)}));
    if (rate > 0 && i % (rate / 100 + 1) == 0) std::this_thread::sleep_until(begin + std::chrono::seconds(1) * i / rate);
  }
  std::vector<bool> is_acknowledged(deliveries.size());
  for (std::size_t i = 0; i < deliveries.size(); ++i) {
    try {
      deliveries[i].get();
      is_acknowledged[i] = true;
      ++summary.acknowledged;
    } catch (const paceline::Error& error) {
      ++summary.failed;
      std::cerr << "record " << i << ": " << error.what() << '\n';
    }
  }
  return is_acknowledged;
}

/// Reads every partition to its end and counts records that are missing, duplicated or out of order.
void read_back(paceline::Client& client, Summary& summary, const std::vector<bool>& is_acknowledged) {
  std::vector<int> seen(is_acknowledged.size());
  for (int partition = 0; partition < partitions; ++partition) {
    const auto end = client.list_offset(summary.topic, partition, paceline::OffsetSpec::latest()).value();
    auto consumer = client.make_consumer({.max_bytes = 4 * 1024 * 1024});
    consumer.assign(summary.topic, partition, 0);
    int last = -1;
    while (consumer.position(summary.topic, partition) < end) {
      const auto records = consumer.poll(std::chrono::seconds(30));
      if (records.empty()) throw std::runtime_error("no records for 30 seconds before the end of partition " + std::to_string(partition));
      for (const auto& record : records) {
        const int number = std::stoi(record.value.value());
        if (number < last) ++summary.reordered;
        last = number;
        ++seen.at(static_cast<std::size_t>(number));
        ++summary.read;
      }
    }
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] > 1) ++summary.doubled;
    if (is_acknowledged[i] && seen[i] == 0) ++summary.lost;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const auto begin = steady_clock::now();
  const auto suffix = std::chrono::system_clock::now().time_since_epoch() / std::chrono::milliseconds(1);
  const Arguments arguments(argc, argv,
                            {{"topic", "cpp-failover-" + std::to_string(suffix)}, {"count", "100000"}, {"rate", "10000"}});
  Summary summary;
  summary.topic = arguments["topic"];
  paceline::Client client(arguments.config());
  client.create_topic({.name = summary.topic,
                       .partitions = partitions,
                       .replication_factor = 3,
                       .configs = {{"min.insync.replicas", "2"}}});
  const auto is_acknowledged = write(client, summary, arguments.number("count"), arguments.number("rate"));
  read_back(client, summary, is_acknowledged);
  summary.seconds = std::chrono::duration<double>(steady_clock::now() - begin).count();
  summary.print();
  return summary.is_good() ? 0 : 3;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
