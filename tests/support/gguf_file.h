#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/text/bpe/byte_alphabet.h"

namespace sluice::test {

/// A GGUF file to be written, right or, with changes, wrong.
struct GgufFile {
  struct Key {
    std::string name;
    std::uint32_t type;
    std::string value;
  };
  struct Stored {
    std::string name;
    std::vector<std::uint64_t> dimensions;  ///< as in the file: the contiguous one first
    std::uint32_t type;
    std::string data;
    std::uint64_t offset_error = 0;
  };
  std::uint32_t magic = 0x46554747, version = 3;
  std::vector<Key> keys{};
  std::vector<Stored> tensors{};
  std::uint64_t alignment = 32;

  template <class T>
  static std::string bytes_of(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  static std::string text_of(const std::string& text) {
    return bytes_of<std::uint64_t>(text.size()) + text;
  }

  void number(const std::string& name, std::uint32_t value) {
    keys.push_back({name, 4, bytes_of(value)});
  }
  void real(const std::string& name, float value) { keys.push_back({name, 6, bytes_of(value)}); }
  void boolean(const std::string& name, bool value) {
    keys.push_back({name, 7, std::string(1, value ? '\1' : '\0')});
  }
  void text(const std::string& name, const std::string& value) {
    keys.push_back({name, 8, text_of(value)});
  }
  void texts(const std::string& name, const std::vector<std::string>& values) {
    std::string all = bytes_of<std::uint32_t>(8) + bytes_of<std::uint64_t>(values.size());
    for (const std::string& value : values)
      all += text_of(value);
    keys.push_back({name, 9, all});
  }
  void numbers(const std::string& name, const std::vector<std::int32_t>& values) {
    std::string all = bytes_of<std::uint32_t>(5) + bytes_of<std::uint64_t>(values.size());
    for (const std::int32_t value : values)
      all += bytes_of(value);
    keys.push_back({name, 9, all});
  }

  /// Adds a tokenizer of 256 bytes, "ab" and "<|end|>", which ends a text.
  void tokenizer(const std::string& split = "smollm") {
    text("tokenizer.ggml.model", "gpt2");
    text("tokenizer.ggml.pre", split);
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte)
      tokens.push_back(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
    std::vector<std::int32_t> types(256, 1);
    tokens.insert(tokens.end(), {"ab", "<|end|>"});
    types.insert(types.end(), {1, 3});
    texts("tokenizer.ggml.tokens", tokens);
    numbers("tokenizer.ggml.token_type", types);
    texts("tokenizer.ggml.merges", {"a b"});
    number("tokenizer.ggml.eos_token_id", 257);
  }

  std::string bytes() const {
    std::string out = bytes_of(magic) + bytes_of(version);
    out += bytes_of<std::uint64_t>(tensors.size()) + bytes_of<std::uint64_t>(keys.size());
    for (const Key& key : keys)
      out += text_of(key.name) + bytes_of(key.type) + key.value;
    std::uint64_t offset = 0;
    for (const Stored& tensor : tensors) {
      out += text_of(tensor.name) + bytes_of(static_cast<std::uint32_t>(tensor.dimensions.size()));
      for (const std::uint64_t size : tensor.dimensions)
        out += bytes_of(size);
      out += bytes_of(tensor.type) + bytes_of(offset + tensor.offset_error);
      offset += (tensor.data.size() + alignment - 1) / alignment * alignment;
    }
    for (const Stored& tensor : tensors) {
      out.resize((out.size() + alignment - 1) / alignment * alignment);
      out += tensor.data;
    }
    return out;
  }
};

}  // namespace sluice::test
