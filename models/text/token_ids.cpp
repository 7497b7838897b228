#include "models/text/token_ids.h"

#include <fmt/format.h>

#include <charconv>
#include <sstream>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {

std::vector<std::int32_t> parse_token_ids(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::int32_t> ids;
  std::string word;
  while (stream >> word) {
    std::int32_t id = -1;
    const char* const end_of_word = word.data() + word.size();
    const auto [end, error] = std::from_chars(word.data(), end_of_word, id);
    if (error != std::errc() || end != end_of_word || id < 0)
      fail(fmt::format("--tokens: '{}' is not a token id; write numbers, \"1 2 3\", or give text "
                       "as --prompt",
                       excerpt(word)),
           ErrorKind::usage);
    ids.push_back(id);
  }
  return ids;
}

}  // namespace sluice
