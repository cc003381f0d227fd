// Creates a topic and describes it, or deletes it with --delete yes.
#include <iostream>

#include "arguments.hpp"

int main(int argc, char** argv) try {
  const Arguments arguments(argc, argv, {{"topic", "rides"}, {"partitions", "3"}, {"replicas", "3"}, {"delete", "no"}});
  const auto& topic = arguments["topic"];
  paceline::Client client(arguments.config());
  if (arguments["delete"] == "yes") {
    client.delete_topic(topic);
    std::cout << "deleted " << topic << '\n';
    return 0;
  }
  try {
    client.create_topic({.name = topic,
                         .partitions = arguments.number("partitions"),
                         .replication_factor = arguments.number("replicas"),
                         .configs = {{"min.insync.replicas", arguments.number("replicas") > 1 ? "2" : "1"}}});
  } catch (const paceline::Error& error) {
    if (error.code() != paceline::v1::ERROR_CODE_TOPIC_ALREADY_EXISTS) throw;
  }
  const auto description = client.describe_topic(topic);
  std::cout << "topic " << topic << " id " << description.topic_id << '\n';
  for (const auto& partition : description.partitions) {
    std::cout << "partition " << partition.partition << ": leader "
              << (partition.leader ? std::to_string(*partition.leader) : "none") << ", in sync";
    for (const auto broker : partition.isr) std::cout << ' ' << broker;
    std::cout << '\n';
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
