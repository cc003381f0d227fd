// Members of consumer groups: each is polled by a thread of its own, so that commands never wait for a rebalance.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "codec.hpp"

/// A mutex that threads get in the order of their calls, so that a command waits for one poll at most.
class FairMutex {
public:
  void lock() {
    std::unique_lock lock(mutex_);
    const auto ticket = next_++;
    changed_.wait(lock, [&] { return serving_ == ticket; });
  }
  void unlock() {
    const std::lock_guard lock(mutex_);
    ++serving_;
    changed_.notify_all();
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ = 0;
  std::uint64_t serving_ = 0;
};

class GroupMember {
public:
  GroupMember(const paceline::Client& client, const json& command)
      : consumer_(client.make_group_consumer(config_of(command))) {
    paceline::RebalanceListener listener;
    listener.on_assigned = [this](const auto& partitions) { note("assigned", partitions); };
    listener.on_revoked = [this](const auto& partitions) { note("revoked", partitions); };
    listener.on_lost = [this](const auto& partitions) { note("lost", partitions); };
    consumer_.subscribe(command.at("topics").get<std::vector<std::string>>(), listener);
    resume();
  }

  void pause() { poller_ = {}; }
  void resume() {
    if (!poller_.joinable()) poller_ = std::jthread([this](const std::stop_token& stop) { poll(stop); });
  }

  void close() {
    pause();
    try {
      consumer_.close();
    } catch (const std::exception& error) {
      std::cerr << "closing a member: " << error.what() << std::endl;
    }
  }

  void commit(const json& command, const paceline::CallOptions& options) {
    const std::lock_guard lock(mutex_);
    const auto listed = command.value("offsets", json());
    if (listed.is_null()) return consumer_.commit(options);
    paceline::Offsets offsets;
    for (const auto& one : listed) {
      auto& offset = offsets[{one.at("topic").get<std::string>(), one.value("partition", 0)}];
      offset.offset = std::stoll(one.at("offset").get<std::string>());
      offset.metadata = one.value("metadata", "");
      if (const auto epoch = one.value("leader_epoch", json()); !epoch.is_null())
        offset.leader_epoch = epoch.get<std::int32_t>();
    }
    consumer_.commit(offsets, options);
  }

  json committed(const json& command, const paceline::CallOptions& options) {
    std::vector<paceline::TopicPartition> wanted;
    for (const auto& [topic, partitions] : command.at("partitions").items())
      for (const auto& partition : partitions) wanted.push_back({topic, partition.get<std::int32_t>()});
    std::sort(wanted.begin(), wanted.end());
    const std::lock_guard lock(mutex_);
    const auto found = consumer_.committed(wanted, options);
    json offsets = json::array();
    for (const auto& at : wanted) {
      json entry = {{"topic", at.topic}, {"partition", at.partition}, {"offset", nullptr}, {"metadata", ""}, {"leader_epoch", nullptr}};
      if (const auto committed = found.find(at); committed != found.end()) {
        entry["offset"] = std::to_string(committed->second.offset);
        entry["metadata"] = committed->second.metadata;
        if (committed->second.leader_epoch) entry["leader_epoch"] = *committed->second.leader_epoch;
      }
      offsets.push_back(entry);
    }
    return {{"offsets", offsets}};
  }

  json state() {
    const std::lock_guard lock(mutex_);
    const auto generation = consumer_.generation();
    const auto assignment = consumer_.assignment();
    json positions = json::object();
    for (const auto& at : assignment)
      if (const auto position = consumer_.position(at.topic, at.partition)) positions[name_of(at.topic, at.partition)] = std::to_string(*position);
    return {{"member_id", generation ? consumer_.member_id() : std::string()},
            {"generation", generation.value_or(-1)},
            {"assignment", by_topic(assignment)},
            {"positions", positions},
            {"read", read_},
            {"events", events_},
            {"error", error_}};
  }

private:
  static paceline::GroupConfig config_of(const json& command) {
    using std::chrono::milliseconds;
    paceline::GroupConfig config;
    config.group_id = command.at("group_id").get<std::string>();
    config.instance_id = command.value("group_instance_id", "");
    config.session_timeout = milliseconds(command.value("session_timeout_ms", 30'000));
    config.heartbeat_interval = milliseconds(command.value("heartbeat_interval_ms", 100));
    config.max_poll_interval = milliseconds(command.value("max_poll_interval_ms", 60'000));
    config.auto_commit = std::nullopt;
    if (command.value("auto_commit", false)) config.auto_commit = milliseconds(command.value("auto_commit_interval_ms", 5'000));
    config.assignors.clear();
    for (const auto& name : command.value("assignors", json::array({"range"})))
      config.assignors.push_back(paceline::assignor_named(name.get<std::string>()));
    config.consumer.reset = reset_of(command);
    return config;
  }

  static std::string name_of(const std::string& topic, std::int32_t partition) {
    return topic + "/" + std::to_string(partition);
  }

  static json by_topic(const std::vector<paceline::TopicPartition>& partitions) {
    json topics = json::object();
    for (const auto& at : partitions) topics[at.topic].push_back(at.partition);
    return topics;
  }

  void note(const std::string& event, const std::vector<paceline::TopicPartition>& partitions) {
    events_.push_back(json::array({event, by_topic(partitions)}));
  }

  /// Polls until a stop is requested or a poll fails.
  void poll(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const std::lock_guard lock(mutex_);
      try {
        for (const auto& record : consumer_.poll(std::chrono::milliseconds(100)))
          read_[name_of(record.topic, record.partition)].push_back(std::to_string(record.offset));
      } catch (const std::exception& error) {
        error_ = error_of(error);
        return;
      }
    }
  }

  FairMutex mutex_;
  paceline::GroupConsumer consumer_;
  std::map<std::string, std::vector<std::string>> read_;
  json events_ = json::array();
  json error_;
  std::jthread poller_;
};

class Members {
public:
  /// Performs a group command; returns nullopt for any other command.
  std::optional<json> perform(const paceline::Client& client, const json& command, const paceline::CallOptions& options) {
    const auto operation = command.at("command").get<std::string>();
    if (!operation.starts_with("group_")) return std::nullopt;
    const auto name = command.at("member").get<std::string>();
    if (operation == "group_open" || operation == "group_close") {
      if (const auto ended = members_.extract(name)) ended.mapped()->close();
      if (operation == "group_open") members_[name] = std::make_unique<GroupMember>(client, command);
      return json::object();
    }
    auto& member = *members_.at(name);
    if (operation == "group_state") return member.state();
    if (operation == "group_committed") return member.committed(command, options);
    if (operation == "group_commit")
      member.commit(command, options);
    else if (operation == "group_pause")
      member.pause();
    else if (operation == "group_resume")
      member.resume();
    else
      return std::nullopt;
    return json::object();
  }

  void close_all() {
    for (auto& [name, member] : members_) member->close();
    members_.clear();
  }

private:
  std::map<std::string, std::unique_ptr<GroupMember>> members_;
};
