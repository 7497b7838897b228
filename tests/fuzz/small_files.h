#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

// Valid files that are small enough to be corrupted in every way.

namespace sluice::fuzz {

/// Returns a vocab.json: the 256 bytes, "ab", "abc" and "<|endoftext|>".
nlohmann::json small_vocabulary();
/// The merges.txt that belongs to it.
inline constexpr std::string_view small_merges = "#version: 0.2\na b\nab c\n";
/// Returns a tokenizer.json of both.
nlohmann::json small_tokenizer();

/// Returns a safetensors file with this header and `data_bytes` zero bytes after it.
std::string safetensors(std::string_view header, std::size_t data_bytes);
/// Returns one that states `length` as the length of its header.
std::string safetensors(std::uint64_t length, std::string_view rest);

/// Returns a safetensors file with a changed header and the same data.
std::string reworded(const std::string& file, const std::function<void(nlohmann::json&)>& change);
std::string renamed(const std::string& file, const char* from, const char* to);
/// Returns the file with the bytes of one element replaced by those of an infinity.
std::string infinite(std::string file, std::size_t from_end);

}  // namespace sluice::fuzz
