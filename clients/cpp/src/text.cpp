#include "text.hpp"

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace paceline::detail {

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const std::size_t length = lead < 0x80 ? 1 : lead >> 5 == 0x06 ? 2 : lead >> 4 == 0x0e ? 3 : lead >> 3 == 0x1e ? 4 : 0;
    if (length == 0 || text.size() - at < length) return false;
    std::uint32_t point = length == 1 ? lead : lead & (0x7fU >> length);
    for (std::size_t i = 1; i < length; ++i) {
      const auto next = static_cast<unsigned char>(text[at + i]);
      if (next >> 6 != 0x02) return false;
      point = point << 6 | (next & 0x3fU);
    }
    constexpr std::uint32_t least[]{0, 0, 0x80, 0x800, 0x10000};
    const bool is_surrogate = point >= 0xd800 && point <= 0xdfff;
    if (point < least[length] || point > 0x10ffff || is_surrogate) return false;
    at += length;
  }
  return true;
}

void check_utf8(const std::string& name, std::string_view text) {
  if (!is_utf8(text)) throw std::invalid_argument(name + " is not UTF-8");
}

}  // namespace paceline::detail
