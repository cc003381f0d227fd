// Writes records to a topic and prints where they lie.
#include <chrono>
#include <future>
#include <iostream>
#include <vector>

#include "arguments.hpp"

int main(int argc, char** argv) try {
  const Arguments arguments(argc, argv, {{"topic", "rides"}, {"count", "10"}});
  const int count = arguments.number("count");
  paceline::Client client(arguments.config());
  auto producer = client.make_producer({.linger = std::chrono::milliseconds(5)});
  std::vector<std::future<paceline::RecordPlace>> deliveries;
  for (int i = 0; i < count; ++i)
    deliveries.push_back(producer.send({.topic = arguments["topic"],
                                        .key = "key-" + std::to_string(i % 16),
                                        .value = "value-" + std::to_string(i)}));
  for (int i = 0; i < count; ++i) {
    const auto [partition, offset] = deliveries[static_cast<std::size_t>(i)].get();
    if (count <= 10) std::cout << "record " << i << ": partition " << partition << ", offset " << offset << '\n';
  }
  std::cout << count << " records acknowledged by every in-sync replica\n";
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
