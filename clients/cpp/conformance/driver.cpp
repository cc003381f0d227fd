// The driver of the C++ client for tests/conformance: JSON lines on stdin and stdout.
#include <chrono>
#include <cstdint>
#include <future>
#include <iostream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "codec.hpp"
#include "members.hpp"

namespace {

using std::chrono::milliseconds;

class Unsupported : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

class Driver {
public:
  json handle(const json& command) {
    const auto name = command.at("command").get<std::string>();
    if (name == "hello") return {{"language", "cpp"}, {"client", "paceline-cpp"}, {"version", "0.1.0"}};
    if (name == "partition_for_key") {
      const auto key = from_base64(command.at("key").get<std::string>());
      return {{"partition", paceline::partition_for_key(key, command.at("partition_count").get<std::int32_t>())}};
    }
    if (name == "open") return open(command);
    if (name == "close") return close();
    if (name == "produce") return produce(command);
    if (name == "consume_open") return consume_open(command);
    if (name == "consume_poll") return consume_poll(command);
    if (name == "consume_close") {
      consumers_.erase(command.at("consumer").get<std::string>());
      return json::object();
    }
    if (name == "list_offset") return list_offset(command);
    if (name == "create_topic") return create_topic(command);
    if (name == "delete_topic") {
      client().delete_topic(command.at("topic"), options_of(command));
      return json::object();
    }
    if (name == "describe_topic") return describe_topic(command);
    if (auto answer = members_.perform(client(), command, options_of(command))) return *answer;
    throw Unsupported("the driver has no command " + name);
  }

  json close() {
    members_.close_all();
    consumers_.clear();
    if (producer_) producer_->close(milliseconds(1'000));
    producer_.reset();
    client_.reset();
    return json::object();
  }

private:
  paceline::Client& client() {
    if (!client_) throw std::logic_error("no cluster is open");
    return *client_;
  }

  paceline::CallOptions options_of(const json& command) const {
    const auto timeout = command.value("timeout_ms", 0);
    return {timeout > 0 ? milliseconds(timeout) : timeout_, {}};
  }

  json open(const json& command) {
    close();
    paceline::ClientConfig config;
    config.bootstrap = command.at("bootstrap").get<std::vector<std::string>>();
    config.request_timeout = milliseconds(command.value("request_timeout_ms", 10'000));
    if (const auto tls = command.value("tls", json()); !tls.is_null())
      config.tls = paceline::TlsFiles{tls.at("ca_file").get<std::string>(), tls.value("certificate_file", ""), tls.value("key_file", "")};
    client_.emplace(config);
    timeout_ = milliseconds(command.value("delivery_timeout_ms", 30'000));
    paceline::ProducerConfig producer;
    producer.delivery_timeout = timeout_;
    producer.linger = milliseconds(command.value("linger_ms", 0));
    producer_.emplace(client_->make_producer(producer));
    return json::object();
  }

  json produce(const json& command) {
    const auto topic = command.at("topic").get<std::string>();
    if (!producer_) throw std::logic_error("no cluster is open");
    json results = json::array();
    std::vector<std::future<paceline::RecordPlace>> deliveries;
    for (const auto& fields : command.at("records")) {
      results.push_back(nullptr);
      try {
        deliveries.push_back(producer_->send(record_of(topic, fields), {timeout_, {}}));
      } catch (const std::exception& error) {
        deliveries.emplace_back();
        results.back() = {{"error", error_of(error)}};
      }
    }
    for (std::size_t i = 0; i < deliveries.size(); ++i) {
      if (!deliveries[i].valid()) continue;
      try {
        const auto place = deliveries[i].get();
        results[i] = {{"partition", place.partition}, {"offset", std::to_string(place.offset)}};
      } catch (const std::exception& error) {
        results[i] = {{"error", error_of(error)}};
      }
    }
    return {{"results", results}};
  }

  json consume_open(const json& command) {
    paceline::ConsumerConfig config;
    config.reset = reset_of(command);
    auto consumer = client().make_consumer(config);
    const auto topic = command.at("topic").get<std::string>();
    const auto partition = command.value("partition", 0);
    const auto start = command.value("start", "earliest");
    if (start == "earliest")
      consumer.assign(topic, partition);
    else if (start == "latest")
      // Look up the end now, not at the first poll, so that records sent after this command are read.
      consumer.assign(topic, partition, client().list_offset(topic, partition, paceline::OffsetSpec::latest(), {timeout_, {}}).value());
    else
      consumer.assign(topic, partition, static_cast<std::int64_t>(std::stoll(start)));
    consumers_.insert_or_assign(command.at("consumer").get<std::string>(), std::move(consumer));
    return json::object();
  }

  json consume_poll(const json& command) {
    auto& consumer = consumers_.at(command.at("consumer").get<std::string>());
    json records = json::array();
    try {
      for (const auto& record : consumer.poll(options_of(command).timeout, {}, command.value("max_records", 100U))) {
        json headers = json::array();
        for (const auto& header : record.headers) headers.push_back(json::array({header.key, json_of(header.value)}));
        records.push_back({{"partition", record.partition},
                           {"offset", std::to_string(record.offset)},
                           {"key", json_of(record.key)},
                           {"value", json_of(record.value)},
                           {"headers", headers},
                           {"timestamp_ms", std::to_string(record.timestamp.time_since_epoch().count())}});
      }
    } catch (const paceline::TruncatedError& error) {
      return {{"records", json::array()},
              {"truncated",
               {{"position", std::to_string(error.position)}, {"divergent_offset", std::to_string(error.divergent_offset)}}}};
    }
    return {{"records", records}, {"truncated", nullptr}};
  }

  json list_offset(const json& command) {
    auto at = paceline::OffsetSpec::latest();
    if (command.at("at") == "earliest") at = paceline::OffsetSpec::earliest();
    if (command.at("at") == "timestamp")
      at = paceline::OffsetSpec::at(paceline::Timestamp(milliseconds(std::stoll(command.at("timestamp_ms").get<std::string>()))));
    const auto offset = client().list_offset(command.at("topic"), command.value("partition", 0), at, options_of(command));
    return {{"offset", offset ? json(std::to_string(*offset)) : json()}};
  }

  json create_topic(const json& command) {
    paceline::NewTopic topic;
    topic.name = command.at("topic").get<std::string>();
    topic.partitions = command.value("partitions", 0);
    topic.replication_factor = command.value("replication_factor", 0);
    topic.configs = command.value("configs", std::map<std::string, std::string>());
    return {{"topic_id", client().create_topic(topic, options_of(command))}};
  }

  json describe_topic(const json& command) {
    json partitions = json::array();
    for (const auto& partition : client().describe_topic(command.at("topic"), options_of(command)).partitions)
      partitions.push_back({{"partition", partition.partition},
                            {"leader", partition.leader ? json(*partition.leader) : json()},
                            {"replicas", partition.replicas},
                            {"isr", partition.isr}});
    return {{"partitions", partitions}};
  }

  milliseconds timeout_{30'000};
  std::optional<paceline::Client> client_;
  std::optional<paceline::Producer> producer_;
  std::map<std::string, paceline::Consumer> consumers_;
  Members members_;
};

}  // namespace

int main() {
  Driver driver;
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      const auto command = json::parse(line);
      answer["id"] = command.at("id");
      answer["ok"] = driver.handle(command);
    } catch (const Unsupported& error) {
      answer["unsupported"] = error.what();
    } catch (const std::exception& error) {
      answer["error"] = error_of(error);
    }
    std::cout << answer.dump() << '\n' << std::flush;
  }
  driver.close();
}
