// Reads a topic as a member of a consumer group until Ctrl-C. Start it twice and see how the partitions are shared.
#include <chrono>
#include <iostream>

#include "arguments.hpp"

namespace {

auto teller(const char* event) {
  return [event](const paceline::RebalanceListener::Partitions& partitions) {
    std::cout << event;
    for (const auto& [topic, partition] : partitions) std::cout << ' ' << topic << '/' << partition;
    std::cout << std::endl;
  };
}

}  // namespace

int main(int argc, char** argv) try {
  const Arguments arguments(argc, argv, {{"topic", "rides"}, {"group", "billing"}});
  const Interrupt interrupt;
  paceline::Client client(arguments.config());
  paceline::GroupConfig config;
  config.group_id = arguments["group"];
  config.auto_commit.reset();  // The program commits offsets itself, after it has handled the records.
  auto consumer = client.make_group_consumer(config);
  consumer.subscribe({arguments["topic"]},
                     {.on_assigned = teller("assigned"), .on_revoked = teller("revoked"), .on_lost = teller("lost")});
  while (!interrupt.token().stop_requested()) {
    for (const auto& record : consumer.poll(std::chrono::milliseconds(500)))
      std::cout << record.partition << '/' << record.offset << ' ' << record.value.value_or("null") << std::endl;
    try {
      consumer.commit();
    } catch (const paceline::CommitFailedError& error) {
      std::cerr << error.what() << '\n';  // Another member has the partitions by now and reads these records again.
    }
  }
  consumer.close();
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
