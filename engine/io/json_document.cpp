#include "engine/io/json_document.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/io/file.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

/// Returns the part of the library's message that is meant for people, e.g. "parse error at line 1,
/// column 5: syntax error while parsing value - invalid literal". The rest quotes the input and can
/// be as long as the input.
std::string reason_of(std::string_view message) {
  if (const auto end_of_tag = message.find("] "); end_of_tag != message.npos)
    message.remove_prefix(end_of_tag + 2);
  message = message.substr(0, message.find("; last read"));
  constexpr std::size_t max_length = 200;
  return std::string(message.substr(0, max_length));
}

/// Builds the document from the parser's events. The library's own builder keeps the last of two
/// equal keys. Its callback interface could detect them, but takes quadratic time in an object's
/// members. Its parser does not recurse, so nesting needs no stack.
class DocumentBuilder final : public Json::json_sax_t {
 public:
  DocumentBuilder(Json& root, std::string_view what) : root_(root), what_(what) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override {
    refuse_nul(value);
    return add(std::move(value));
  }
  bool binary(binary_t&) override { return false; }  // never occurs in text

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    refuse_nul(name);
    const auto [member, inserted] = open_.back()->emplace(std::move(name), nullptr);
    if (!inserted)
      fail(fmt::format("{}: the key {} occurs twice in one object", what_, quote(member.key())),
           ErrorKind::usage);
    member_ = &*member;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    fail(fmt::format("{} is not valid JSON: {}", what_, reason_of(error.what())), ErrorKind::usage);
  }

 private:
  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  bool open(Json container) {
    if (open_.size() == max_json_depth)
      fail(fmt::format("{}: the JSON is nested more than {} levels deep", what_, max_json_depth),
           ErrorKind::usage);
    open_.push_back(place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  Json* place(Json value) {
    if (++values_ > max_json_values)
      fail(fmt::format("{}: the JSON has more than {} values", what_, max_json_values),
           ErrorKind::usage);
    if (open_.empty()) return &(root_ = std::move(value));
    Json& container = *open_.back();
    if (container.is_object()) return &(*member_ = std::move(value));
    container.push_back(std::move(value));
    return &container.back();
  }

  void refuse_nul(std::string_view text) {
    if (text.find('\0') != text.npos)
      fail(fmt::format("{}: the string {} contains an escaped NUL", what_, quote(text)),
           ErrorKind::usage);
  }

  Json& root_;
  std::string_view what_;
  std::vector<Json*> open_;  ///< the arrays and objects around the current position
  Json* member_ = nullptr;   ///< in the innermost object: destination of the last key's value
  std::size_t values_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view what) {
  // The parser below skips a byte order mark and takes NUL as the end of its input.
  if (text.starts_with("\xEF\xBB\xBF"))
    fail(fmt::format("{} begins with a byte order mark; save it as UTF-8 without one", what),
         ErrorKind::usage);
  if (text.empty()) fail(fmt::format("{} is not valid JSON: it is empty", what), ErrorKind::usage);
  if (const auto nul = text.find('\0'); nul != text.npos)
    fail(fmt::format("{} is not valid JSON: NUL at byte {}", what, nul), ErrorKind::usage);
  Json root;
  DocumentBuilder builder(root, what);
  Json::sax_parse(text, &builder);
  return root;
}

Json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  return parse_json(read_text_file(path, max_bytes), path.string());
}

std::string quote(std::string_view text) {
  constexpr std::size_t max_length = 100;
  const bool cut = text.size() > max_length;
  return fmt::format("{:?}{}", text.substr(0, max_length), cut ? "..." : "");
}

std::string excerpt(std::string_view text) {
  const std::string quoted = quote(text);
  const auto end = quoted.rfind('"');
  return quoted.substr(1, end - 1) + quoted.substr(end + 1);
}

std::string shown(const Json& value) {
  constexpr std::size_t max_length = 100;
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= max_length ? text : text.substr(0, max_length) + "...";
}

}  // namespace sluice
