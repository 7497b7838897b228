#include "apps/data/json_lines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

class Lines {
 public:
  explicit Lines(Input& input) : input_(input), buffer_(std::size_t{1} << 20, '\0') {}

  /// Returns the next line without its end; valid until the next call.
  std::optional<std::string_view> next() {
    line_.clear();
    for (;;) {
      const auto end = rest_.find('\n');
      if (end != rest_.npos) {
        const std::string_view found = rest_.substr(0, end);
        rest_.remove_prefix(end + 1);
        if (line_.empty()) return found;
        return line_ += found;
      }
      line_ += rest_;
      const std::size_t got = input_.read(std::as_writable_bytes(std::span(buffer_)));
      rest_ = std::string_view(buffer_).substr(0, got);
      if (got > 0) continue;
      if (line_.empty()) return std::nullopt;
      return line_;
    }
  }

 private:
  Input& input_;
  std::string buffer_, line_;
  std::string_view rest_;  // part of the buffer
};

/// Returns the names of an object's first members.
std::string names_of(const nlohmann::json& object) {
  std::vector<std::string> names;
  for (const auto& [key, value] : object.items()) {
    if (names.size() == 5) {
      names.push_back("...");
      break;
    }
    names.push_back(excerpt(key));
  }
  return names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

void read_json_lines(Input& input, const std::string& name, const TextOptions& o, Skipped& skipped,
                     const TextSource::Take& take) {
  const std::vector<std::string> fields =
      o.pairs ? std::vector{o.pairs->prompt, o.pairs->completion} : std::vector{o.field};
  Lines lines(input);
  std::int64_t number = 0;
  bool blank = true;
  while (auto line = lines.next()) {
    constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
    if (++number == 1 && line->starts_with(byte_order_mark))
      line->remove_prefix(byte_order_mark.size());
    if (line->find_first_not_of(" \t\r") == line->npos) continue;
    blank = false;
    const std::string place = fmt::format("{}:{}", name, number);
    nlohmann::json object;
    try {
      object = parse_json(*line, place);
      if (!object.is_object())
        fail(fmt::format("{} is {}, not a JSON object", place, shown(object)), ErrorKind::usage);
      for (const std::string& field : fields)
        if (const auto found = object.find(field);
            found != object.end() && !found->is_string() && !found->is_null())
          fail(fmt::format("{}: the field {} is {}, not a string", place, quote(field),
                           shown(*found)),
               ErrorKind::usage);
    } catch (const Error& error) {
      if (!o.skip_bad_lines)
        fail(fmt::format("{}{}", error.what(),
                         o.may_skip ? "; prepare_data --skip-bad-lines leaves such lines out" : ""),
             ErrorKind::usage);
      skipped.add("bad line", "bad lines", place);
      continue;
    }
    const auto missing = std::ranges::find_if(
        fields, [&](const std::string& field) { return !object.contains(field); });
    if (missing != fields.end()) {
      skipped.add(fmt::format("line without the field {}", quote(*missing)),
                  fmt::format("lines without the field {}", quote(*missing)),
                  fmt::format("{}, which has {}", place, names_of(object)));
      continue;
    }
    const auto string_in = [&](const std::string& field) {  // null for JSON's null
      return object[field].get_ptr<const std::string*>();
    };
    const std::string* const text = string_in(fields.back());
    if (text == nullptr || text->empty()) {
      const char* const what = o.pairs ? "completion" : "text";
      skipped.add(fmt::format("line with an empty {}", what),
                  fmt::format("lines with an empty {}", what), place);
    } else if (o.pairs) {
      const std::string* const prompt = string_in(fields.front());
      const std::string pair = (prompt != nullptr ? *prompt : "") + *text;
      take({place, pair, pair.size() - text->size()});
    } else {
      take({place, *text});
    }
  }
  if (number == 0)
    skipped.add("empty file", "empty files", name);
  else if (blank)
    skipped.add("file of blank lines", "files of blank lines", name);
}

}  // namespace sluice
