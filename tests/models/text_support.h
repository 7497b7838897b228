#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "models/text/bpe/bpe_tables.h"
#include "models/text/bpe/byte_alphabet.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace sluice::test {

struct TemporaryFolder : TempDir {
  std::filesystem::path write(std::string_view name, std::string_view text) const {
    write_file(path() / name, text);
    return path() / name;
  }
};

/// Returns a tokenizer small enough to be corrupted in every way: ids 0 to 255 are the bytes, then
/// come "ab", "abc", " a" and "<|endoftext|>".
inline BpeDescription small_bpe() {
  BpeDescription bpe{"vocab.json", "merges.txt", "line", {}, {{"a", "b", 1}, {"ab", "c", 2}}};
  bpe.merges.push_back({to_byte_alphabet(" "), "a", 3});
  const auto add = [&](const std::string& name) {
    bpe.symbols.push_back({name, bpe.symbols.size()});
  };
  for (int byte = 0; byte < 256; ++byte)
    add(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
  for (const auto& merge : bpe.merges)
    add(merge.left + merge.right);
  add("<|endoftext|>");
  return bpe;
}

/// Returns a tokenizer.json of it.
nlohmann::json small_tokenizer_json();

/// Returns the message of the Error(usage) that `action` must throw.
template <class Action>
std::string usage_error(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
    return error.what();
  }
  FAIL("no error");
  return {};
}

}  // namespace sluice::test
