#include "tests/fuzz/small_files.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "models/text/bpe/byte_alphabet.h"

namespace sluice::fuzz {

using Json = nlohmann::json;

Json small_vocabulary() {
  Json vocabulary;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[to_byte_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  for (const char* symbol : {"ab", "abc", "<|endoftext|>"})
    vocabulary[symbol] = vocabulary.size();
  return vocabulary;
}

Json small_tokenizer() {
  return {{"model", {{"type", "BPE"}, {"vocab", small_vocabulary()}, {"merges", {"a b", "ab c"}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"normalizer", nullptr},
          {"added_tokens", {{{"id", 258}, {"content", "<|endoftext|>"}}}}};
}

std::string safetensors(std::string_view header, std::size_t data_bytes) {
  return safetensors(header.size(), std::string(header) + std::string(data_bytes, '\0'));
}

std::string safetensors(std::uint64_t length, std::string_view rest) {
  std::string file;
  for (int byte = 0; byte < 8; ++byte)
    file.push_back(static_cast<char>(length >> 8 * byte & 0xFF));
  return file.append(rest);
}

std::string reworded(const std::string& file, const std::function<void(Json&)>& change) {
  const std::size_t length = static_cast<unsigned char>(file[0]) |
                             static_cast<std::size_t>(static_cast<unsigned char>(file[1])) << 8;
  Json header = Json::parse(file.substr(8, length));
  change(header);
  const std::string text = header.dump();
  return safetensors(text.size(), text + file.substr(8 + length));
}

std::string renamed(const std::string& file, const char* from, const char* to) {
  return reworded(file, [&](Json& header) {
    header[to] = header[from];
    header.erase(from);
  });
}

std::string infinite(std::string file, std::size_t from_end) {
  file.replace(file.size() - from_end, 4, std::string("\x00\x00\x80\x7F", 4));
  return file;
}

}  // namespace sluice::fuzz
