#include "tests/fuzz/small_files.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "models/text/byte_alphabet.h"

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

}  // namespace sluice::fuzz
