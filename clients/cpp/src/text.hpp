// Text that goes into requests. A server cannot read a request with other bytes, and gRPC reports that like a broken
// connection, so it would be repeated until the time ends.
#pragma once

#include <string>
#include <string_view>

namespace paceline::detail {

bool is_utf8(std::string_view text);

/// Throws std::invalid_argument when a text is not UTF-8. `name` says which text, for example "the topic".
void check_utf8(const std::string& name, std::string_view text);

}  // namespace paceline::detail
