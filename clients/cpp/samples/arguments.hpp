// Flags of the samples: --name value, with a default for each.
#pragma once

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <map>
#include <stop_token>
#include <string>
#include <thread>

#include "paceline/paceline.hpp"

class Arguments {
public:
  Arguments(int count, char** words, std::map<std::string, std::string> values) : values_(std::move(values)) {
    values_.try_emplace("bootstrap", "");
    for (int i = 1; i < count; i += 2) {
      std::string name = words[i];
      name.erase(0, name.find_first_not_of('-'));
      if (i + 1 == count || values_.count(name) == 0) {
        std::cerr << "unknown flag or flag without a value: " << words[i] << "; the flags are";
        for (const auto& [known, value] : values_) std::cerr << " --" << known;
        std::cerr << '\n';
        std::exit(2);
      }
      values_[name] = words[i + 1];
    }
  }

  const std::string& operator[](const std::string& name) const { return values_.at(name); }
  int number(const std::string& name) const { return std::stoi(values_.at(name)); }

  /// Returns the config of the cluster that --bootstrap names, else the environment, else the default of `paceline dev up`.
  paceline::ClientConfig config() const {
    if (!values_.at("bootstrap").empty()) setenv("PACELINE_BOOTSTRAP_SERVERS", values_.at("bootstrap").c_str(), 1);
    setenv("PACELINE_BOOTSTRAP_SERVERS", "127.0.0.1:9102", 0);
    return paceline::ClientConfig::from_environment();
  }

private:
  std::map<std::string, std::string> values_;
};

/// Requests a stop when the user presses Ctrl-C. Construct it before any other thread: threads inherit the blocked signals.
class Interrupt {
public:
  Interrupt() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    waiter_ = std::jthread([this](const std::stop_token& ended) {
      const timespec pause{0, 100'000'000};
      while (!ended.stop_requested())
        if (sigtimedwait(&signals_, nullptr, &pause) > 0) source_.request_stop();
    });
  }
  std::stop_token token() const { return source_.get_token(); }

private:
  sigset_t signals_{};
  std::stop_source source_;
  std::jthread waiter_;
};
