// Prints the records of a topic from its beginning until Ctrl-C, or --count records.
#include <chrono>
#include <iostream>

#include "arguments.hpp"

int main(int argc, char** argv) try {
  const Arguments arguments(argc, argv, {{"topic", "rides"}, {"count", "0"}});
  const Interrupt interrupt;
  const int count = arguments.number("count");
  paceline::Client client(arguments.config());
  auto consumer = client.make_consumer();
  consumer.assign_topic(arguments["topic"], paceline::OffsetSpec::earliest(), {.stop = interrupt.token()});
  for (int read = 0; count == 0 || read < count;) {
    try {
      for (const auto& record : consumer.poll(std::chrono::seconds(1), interrupt.token())) {
        std::cout << record.partition << '/' << record.offset << ' ' << record.key.value_or("null") << '='
                  << record.value.value_or("null") << std::endl;
        if (++read == count) break;
      }
    } catch (const paceline::TruncatedError& error) {
      std::cerr << error.what() << '\n';  // The next poll continues at the divergent offset.
    }
  }
} catch (const paceline::CancelledError&) {
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
