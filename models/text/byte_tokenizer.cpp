#include "models/text/byte_tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/io/durable.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/text/content_hash.h"
#include "models/text/hugging_face_files.h"

namespace sluice {
namespace {

constexpr std::string_view marker = R"({"tokenizer": "bytes", "vocab_size": 256})";

}  // namespace

ByteTokenizer ByteTokenizer::load(const std::filesystem::path& file) {
  if (read_json_file(file, max_text_file) != nlohmann::json::parse(marker))
    fail(fmt::format("{} does not describe the byte tokenizer, which is {}", file.string(), marker),
         ErrorKind::usage);
  return {};
}

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  for (const char byte : text)
    ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

std::string ByteTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const auto id : ids)
    text.push_back(static_cast<char>(index(id)));
  return text;
}

std::string ByteTokenizer::content_hash() const {
  ContentHash hash;
  hash.add("bytes");
  return hash.text();
}

void ByteTokenizer::save(const std::filesystem::path& directory) const {
  write_text_file(directory / "bytes.json", std::string(marker) + "\n");
  write_byte_files(directory);
}

}  // namespace sluice
