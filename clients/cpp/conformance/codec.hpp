// The JSON encoding of tests/conformance/README.md: 64-bit integers are strings, bytes are base64 or null.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "paceline/paceline.hpp"

using nlohmann::json;

inline constexpr std::string_view base64_alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

inline std::string from_base64(const std::string& text) {
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    const auto value = base64_alphabet.find(c);
    if (value == std::string_view::npos) throw std::invalid_argument("bad base64: " + text);
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<char>(bits >> count & 0xff));
    }
  }
  return bytes;
}

inline std::string to_base64(const std::string& bytes) {
  std::string text;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (count += 8; count >= 6; count -= 6) text.push_back(base64_alphabet[bits >> (count - 6) & 0x3f]);
  }
  if (count > 0) text.push_back(base64_alphabet[bits << (6 - count) & 0x3f]);
  while (text.size() % 4 != 0) text.push_back('=');
  return text;
}

inline paceline::Bytes bytes_of(const json& value) {
  return value.is_null() ? std::nullopt : paceline::Bytes(from_base64(value.get<std::string>()));
}

inline json json_of(const paceline::Bytes& bytes) { return bytes ? json(to_base64(*bytes)) : json(); }

inline paceline::Record record_of(const std::string& topic, const json& fields) {
  paceline::Record record;
  record.topic = topic;
  if (const auto partition = fields.value("partition", json()); !partition.is_null())
    record.partition = partition.get<std::int32_t>();
  record.key = bytes_of(fields.value("key", json()));
  record.value = bytes_of(fields.value("value", json()));
  const auto headers = fields.value("headers", json());
  for (const auto& header : headers) record.headers.push_back({header.at(0).get<std::string>(), bytes_of(header.at(1))});
  if (const auto time = fields.value("timestamp_ms", json()); !time.is_null())
    record.timestamp = paceline::Timestamp(std::chrono::milliseconds(std::stoll(time.get<std::string>())));
  return record;
}

inline paceline::ResetPolicy reset_of(const json& command) {
  static const std::map<std::string, paceline::ResetPolicy> policies{{"earliest", paceline::ResetPolicy::earliest},
                                                                     {"latest", paceline::ResetPolicy::latest},
                                                                     {"error", paceline::ResetPolicy::error}};
  return policies.at(command.value("reset", "earliest"));
}

inline json error_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const paceline::Error*>(&error))
    return {{"code", paceline::code_name(known->code())}, {"message", known->what()}, {"definite", known->definite()}};
  if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr)
    return {{"code", "INVALID_REQUEST"}, {"message", error.what()}, {"definite", true}};
  return {{"code", "UNKNOWN_SERVER_ERROR"}, {"message", error.what()}, {"definite", false}};
}
