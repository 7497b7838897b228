#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

// Files that are right, small enough to be spoilt in every way.

namespace sluice::fuzz {

/// vocab.json: the 256 bytes, "ab", "abc" and "<|endoftext|>".
nlohmann::json small_vocabulary();
/// merges.txt to it.
inline constexpr std::string_view small_merges = "#version: 0.2\na b\nab c\n";
/// tokenizer.json of both.
nlohmann::json small_tokenizer();

/// A safetensors file with this header and `data_bytes` zero bytes after it.
std::string safetensors(std::string_view header, std::size_t data_bytes);
/// With this number for the length of its header.
std::string safetensors(std::uint64_t length, std::string_view rest);

/// A safetensors file of which the header was changed; its data stay.
std::string reworded(const std::string& file, const std::function<void(nlohmann::json&)>& change);
std::string renamed(const std::string& file, const char* from, const char* to);
/// With the bytes of one element replaced by those of an infinity.
std::string infinite(std::string file, std::size_t from_end);

}  // namespace sluice::fuzz
