// Checks that text in requests is UTF-8. A server cannot parse a request with other bytes, and gRPC reports this error like
// a broken connection, so that the call would be retried until its deadline.
#pragma once

#include <string>
#include <string_view>

namespace paceline::detail {

bool is_utf8(std::string_view text);

/// Throws std::invalid_argument when a text is not UTF-8. `name` describes the text in the message, for example "the topic".
void check_utf8(const std::string& name, std::string_view text);

}  // namespace paceline::detail
