// Prints the events of a cluster as they happen, until Ctrl-C: elections, changes of ISRs, brokers, topics.
#include <iostream>

#include <google/protobuf/util/json_util.h>

#include "arguments.hpp"
#include "paceline/v1/metadata_service.pb.h"

int main(int argc, char** argv) try {
  const Arguments arguments(argc, argv, {});
  const Interrupt interrupt;
  paceline::Client client(arguments.config());
  const auto print = [](const paceline::v1::EventBatch& batch) {
    if (batch.has_gap()) std::cout << "{\"gap\": true}\n";
    for (const auto& event : batch.events()) {
      std::string text;
      if (google::protobuf::util::MessageToJsonString(event, &text).ok()) std::cout << text << std::endl;
    }
  };
  client.watch_events(print, interrupt.token());
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
