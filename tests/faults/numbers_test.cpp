#include <bit>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <limits>

#include "apps/checkpoint/checkpoint_manifest.h"
#include "engine/io/safetensors.h"
#include "tests/faults/runs.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"

// Numbers that no run has made: tokens that change under it, moments that are none (rows 13 and 14
// of what a run may touch). It stops, says where, and what was saved before stays.

namespace sluice::test::numbers_test {
namespace {

/// Sets the fourth number of a tensor, and gives the checkpoint the checksums of what it has then.
void spoil(const fs::path& checkpoint, const std::string& tensor, float value) {
  const fs::path file = checkpoint / optimizer_file;
  std::string bytes = read_file(file);
  {
    const SafetensorsReader reader(file);
    const StoredTensor* const found = reader.find(tensor);
    REQUIRE(found != nullptr);
    const std::size_t start = reader.data_start() + found->begin;
    if (found->type == StoredType::F32) {
      std::memcpy(bytes.data() + start + 12, &value, 4);
    } else {
      REQUIRE(found->type == StoredType::BF16);
      const auto upper = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
      std::memcpy(bytes.data() + start + 6, &upper, 2);
    }
  }
  write_file(file, bytes);
  CheckpointManifest manifest = read_manifest(checkpoint);
  SectionSums sums;
  sums.add(std::as_bytes(std::span(bytes)));
  manifest.files[optimizer_file] = sums;
  write_file(checkpoint / "state.json", to_text(manifest));
}

}  // namespace

TEST_CASE("moments that no training has made are refused by name, in every layout", "[files]") {
  FaultRuns runs(kinds().front());
  Tally tally("files: moments that are none");
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Row {
    Flags flags;
    std::vector<std::pair<std::string, float>> bad;
  };
  const std::string matrix = ".h.0.mlp.c_fc.weight", vector = ".h.1.ln_1.weight";
  const Flags bf16{{"--precision", "bf16"}};
  const Row rows[] = {
      {{},
       {{"first_moment" + vector, infinity},
        {"first_moment" + matrix, -infinity},
        {"second_moment" + vector, nan},
        {"second_moment" + matrix, -1e-3F}}},
      {bf16 + Flags{{"--state-layout", "bf16mv"}},
       {{"first_moment" + matrix, nan},
        {"second_moment" + matrix, -1},
        {"second_moment" + matrix, infinity},
        {"second_moment" + vector, -1}}},
      {bf16 + Flags{{"--state-layout", "int8"}},
       {{"first_scale" + matrix, nan}, {"second_scale" + matrix, -1}}},
      {{{"--optimizer", "sgd"}}, {{"velocity" + matrix, nan}}},
      {{{"--optimizer", "muon"}}, {{"momentum" + matrix, nan}}},
      {{{"--optimizer", "adafactor"}},
       {{"row_second_moment" + matrix, -1}, {"column_second_moment" + matrix, infinity}}}};
  for (const auto& [flags, bad] : rows) {
    const Flags four = flags + Flags{{"--steps", "4"}};
    const Ended first = runs.run("base", {.flags = four});
    INFO(first.err);
    REQUIRE(first.exit_code == 0);
    for (const auto& [tensor, value] : bad) {
      fs::copy(runs.path() / "base", runs.path() / "spoilt", fs::copy_options::recursive);
      const fs::path checkpoint = runs.path() / "spoilt/checkpoints/step-00000004";
      spoil(checkpoint, tensor, value);
      const Ended ended = runs.run("spoilt", {.flags = flags});
      Problems problems;
      problems.require(ended.exit_code == 1, "exit code " + std::to_string(ended.exit_code));
      for (const std::string& word :
           {(checkpoint / optimizer_file).string(), tensor, std::string("element 3")})
        problems.require(ended.words.find(word) != std::string::npos,
                         "without " + word + ": " + ended.err);
      problems.require(count_lines(ended.words) == 1, "not one line: " + ended.err);
      tally.round(tensor + " = " + std::to_string(value), problems.text());
      runs.forget("spoilt");
    }
    // A first moment may well be negative.
    if (flags.empty()) {
      spoil(runs.path() / "base/checkpoints/step-00000004", "first_moment" + matrix, -0.5F);
      tally.round("a good one", runs.run("base").exit_code == 0 ? "" : "it was refused");
    }
    runs.forget("base");
  }
}

TEST_CASE("a token file that is overwritten under a run ends it, and says where", "[files]") {
  FaultRuns runs(kinds().front());
  const fs::path tokens = runs.path() / "tokens.bin";
  write_tokens(tokens, 4000, 256);
  Job job(runs, "out",
          {.flags = {{"--data", tokens.string()},
                     {"--vocab-size", "256"},
                     {"--steps", "1000000"},
                     {"--tokenizer", "-"}}});
  REQUIRE(eventually([&] { return newest_step(runs.path() / "out") >= 4; }));
  const std::string bytes(fs::file_size(tokens), '\xFF');
  std::FILE* const file = std::fopen(tokens.c_str(), "r+b");
  REQUIRE(file != nullptr);
  std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
  const Ended ended = job.finish();
  CHECK(ended.exit_code == 1);
  CHECK(count_lines(ended.words) == 1);
  CHECK_THAT(ended.words, Contains(tokens.string()) && Contains("at positions 0 to 3999") &&
                              Contains("changed while it was in use"));
  CHECK(newest_step(runs.path() / "out") >= 4);
  CHECK_FALSE(fs::exists(runs.path() / "out" / "model"));
}

}  // namespace sluice::test::numbers_test
