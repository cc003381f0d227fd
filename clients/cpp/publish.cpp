// Publishes each line of the standard input as a record: publish TOPIC < FILE
#include "gateway.hpp"

using namespace paceline::v1;

namespace {

constexpr int kRecordsPerCall = 500;

/// Publishes the records of a request and removes them from it; returns their number.
int publish(gateway::Gateways& gateways, PublishRequest& request) {
  PublishResponse response;
  for (int failures = 0;;) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    const auto status = gateways.current().Publish(&context, request, &response);
    if (status.ok()) break;
    // If only the answer was lost, the next attempt appends the records twice; IdempotentProducer in the proto prevents it.
    gateway::pause_after(status, ++failures);
    gateways.next();
  }
  for (const auto& result : response.results()) {
    if (!result.has_error()) continue;
    std::cerr << "a record was not published: " << result.error().message() << '\n';
    std::exit(EXIT_FAILURE);
  }
  const int count = request.records_size();
  request.clear_records();
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: publish TOPIC < FILE\n";
    return 2;
  }
  gateway::Gateways gateways;
  PublishRequest request;
  request.set_topic(argv[1]);
  long published = 0;
  for (std::string line; std::getline(std::cin, line);) {
    request.add_records()->set_value(line);  // Records with equal keys stay in order: set_key()
    if (request.records_size() == kRecordsPerCall) published += publish(gateways, request);
  }
  if (request.records_size() > 0) published += publish(gateways, request);
  std::cout << published << " records published\n";
}
