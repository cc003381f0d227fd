// Prints the records of a topic as "partition offset value"; all programs of a group share them: subscribe TOPIC GROUP
#include "gateway.hpp"

#include <atomic>
#include <csignal>
#include <mutex>

using namespace paceline::v1;

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: subscribe TOPIC GROUP\n";
    return 2;
  }
  std::atomic<bool> stopping = false;
  std::mutex mutex;  // Guards the stream: it takes one write at a time.
  std::unique_ptr<grpc::ClientReaderWriter<SubscribeRequest, SubscribeResponse>> stream;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::jthread stopper([&] {
    int signal;
    sigwait(&signals, &signal);
    stopping = true;
    const std::lock_guard lock(mutex);
    if (stream) stream->WritesDone();  // Closes our side of the stream; the gateway commits and closes the other.
  });
  gateway::Gateways gateways;
  for (int failures = 0; !stopping;) {
    SubscribeRequest request;
    request.mutable_subscribe()->add_topics(argv[1]);
    request.mutable_subscribe()->set_group(argv[2]);
    grpc::ClientContext context;
    std::unique_lock lock(mutex);
    stream = gateways.current().Subscribe(&context);
    stream->Write(request);
    if (stopping) stream->WritesDone();
    lock.unlock();
    for (SubscribeResponse response; stream->Read(&response);) {
      if (!response.has_records() || stopping) continue;  // Other responses are notices.
      const auto& batch = response.records();
      for (const auto& record : batch.records())
        std::cout << batch.partition() << '\t' << record.offset() << '\t' << record.value() << '\n';
      std::cout.flush();
      // Everything before this position is processed: after a failure the next stream begins here.
      request.mutable_acknowledge()->clear_positions();
      *request.mutable_acknowledge()->add_positions() = batch.next();
      const std::lock_guard locked(mutex);
      if (!stopping && stream->Write(request)) failures = 0;
    }
    lock.lock();
    const auto status = stream->Finish();
    stream.reset();
    lock.unlock();
    if (!status.ok()) gateway::pause_after(status, ++failures);
    gateways.next();
  }
}
