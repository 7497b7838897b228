#include "tests/support/tokenizer_data.h"

#include <nlohmann/json.hpp>

#include "tests/support/data_folders.h"
#include "tests/support/temp_dir.h"

namespace sluice::test {
namespace {

TokenizerData own() {
  const auto folder = data_dir() / "tokenizer";
  const auto expected = nlohmann::json::parse(read_file(folder / "expected.json"));
  TokenizerData data{.folder = folder,
                     .text = {},
                     .vectors = expected.at("vectors"),
                     .vocabulary = expected.at("vocabulary"),
                     .characters = expected.at("characters"),
                     .tokens = expected.at("tokens"),
                     .train_tokens = expected.at("train_tokens"),
                     .val_tokens = expected.at("val_tokens"),
                     .sha256 = expected.at("sha256")};
  const std::string once = read_file(folder / "text.txt");
  for (int copy = 0; copy < expected.at("copies"); ++copy)
    data.text += once;
  return data;
}

}  // namespace

std::vector<TokenizerData> tokenizer_data() {
  std::vector<TokenizerData> all{own()};
  if (const auto shared = shared_dir())
    all.push_back({.folder = *shared / "data",
                   .text = read_file(*shared / "data" / "tinyshakespeare.txt"),
                   .vectors = 200,
                   .vocabulary = 50257,
                   .characters = 65,
                   .tokens = 338025,
                   .train_tokens = 301966,
                   .val_tokens = 36059,
                   .sha256 = "25c01b32b32f41897a6359dd222ec114992dc30c357bcafbfe6c56672f76cd31"});
  return all;
}

std::vector<std::string> tokenizer_folders() {
  std::vector<std::string> folders{(data_dir() / "tokenizer").string()};
  if (const auto gpt2 = gpt2_tokenizer()) folders.push_back(gpt2->string());
  return folders;
}

}  // namespace sluice::test
