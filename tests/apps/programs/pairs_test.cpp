#include "apps/data/tokens/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "apps/data/tokens/loader.h"
#include "kernels/cross_entropy.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/program.h"
#include "tests/support/text_files.h"

// Pairs of prompt and completion: from lines of JSON to rows of which the completion counts.

namespace sluice::test::pairs_test {
namespace {

using Ids = std::vector<std::int32_t>;

Ids file_ids(const std::filesystem::path& path) {
  return all_of(*open_token_file(path, 65536));
}

/// Pairs of these marks; tokens are their own positions, from 1 on.
std::unique_ptr<Pairs> pairs_of(const Ids& marks, const Pairs::Length& length) {
  Ids ids(marks.size());
  std::iota(ids.begin(), ids.end(), 1);
  return std::make_unique<Pairs>(tokens_in_memory(ids), tokens_in_memory(marks), length,
                                 Pairs::Names{"t.bin", "t.mask"});
}

constexpr const char* lines = R"({"prompt":"1+1=","completion":"2"})"
                              "\n"
                              R"({"prompt":"","completion":"hi"})"
                              "\n"
                              R"({"prompt":null,"completion":"you"})"
                              "\n";

}  // namespace

TEST_CASE("pairs are rows, padded with what does not count", "[pairs]") {
  // Three pairs: of 3, 5 and 2 tokens.
  const Ids marks{2, 1, 1, 2, 0, 0, 0, 1, 3, 1};
  const auto pairs = pairs_of(marks, {.most = 100});
  CHECK(pairs->row() == 9);  // the longest needs 4 inputs, which become 8
  CHECK(pairs->size() == 27);
  CHECK(pairs->text() == "3 pairs of 5 tokens at most");
  CHECK(all_of(*pairs) ==
        Ids{1, 2, 3, 0, 0, 0, 0, 0, 0, 4, 5, 6, 7, 8, 0, 0, 0, 0, 9, 10, 0, 0, 0, 0, 0, 0, 0});
  std::vector<std::uint8_t> counted(27);
  pairs->read_counted(0, counted);
  CHECK(std::string(counted.begin(), counted.end()) ==
        std::string("\0\1\1\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\1\1\0\0\0\0\0\0\0", 27));
  // From the middle of a row to the middle of the one after the next.
  Ids some(14);
  pairs->read(7, some);
  const Ids all = all_of(*pairs);
  CHECK(some == Ids(all.begin() + 7, all.begin() + 21));

  Sequences sequences;
  append_sequence(*pairs, 9, 8, sequences);
  CHECK(sequences.tokens == Ids{4, 5, 6, 7, 8, 0, 0, 0});
  CHECK(sequences.targets == Ids{-1, -1, -1, 8, -1, -1, -1, -1});
  CHECK(counted_targets(*pairs, 9, 8) == 1);
  CHECK(counted_targets(*pairs, 18, 8) == 1);  // a row's first token is no target
}

TEST_CASE("packed pairs share rows, and each is a document", "[pairs][pack]") {
  // Pairs of 3, 5, 2, 9 and 4 tokens in rows of 9. A first token that counts has no predictor.
  const Ids marks{3, 1, 1, 2, 0, 0, 1, 1, 3, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 3, 0, 0, 1};
  const auto pairs = pairs_of(marks, {.given = 8, .pack = true});
  CHECK(pairs->text() == "5 pairs of 9 tokens at most, packed into 3 sequences of 8, 85 % full");
  CHECK(all_of(*pairs) == Ids{1,  2,  3,  4,  5,  6,  7,  8,  0,  //
                              9,  10, 20, 21, 22, 23, 0,  0,  0,  //
                              11, 12, 13, 14, 15, 16, 17, 18, 19});
  Sequences both;
  append_sequence(*pairs, 0, 8, both);
  append_sequence(*pairs, 9, 8, both);
  append_sequence(*pairs, 18, 8, both);
  CHECK(both.targets == Ids{2,  3,  -1, -1, -1, 7,  8,  -1,  //
                            10, -1, -1, -1, 23, -1, -1, -1,  //
                            12, 13, 14, 15, 16, 17, 18, 19});
  CHECK(both.documents.starts == std::vector<std::int64_t>{0, 3, 8, 10, 16});
  CHECK(both.documents.part(8, 8).starts == std::vector<std::int64_t>{0, 2});
  CHECK(counted_targets(*pairs, 0, 8) == 4);
  CHECK(counted_targets(*pairs, 9, 8) == 2);
  // From within a pair to within the row after the next.
  Ids some(15);
  pairs->read(4, some);
  const Ids all = all_of(*pairs);
  CHECK(some == Ids(all.begin() + 4, all.begin() + 19));
  // Rows of another length are other data, and those of one pair are as long as it.
  CHECK(pairs->checksum() != pairs_of(marks, {.given = 9, .pack = true})->checksum());
  CHECK(pairs->checksum() != pairs_of(marks, {.given = 8})->checksum());
  // Documents of 3, 5 and, with what fills the rows, 2 and 6, and 8: their squares in 24 places.
  CHECK(pairs->attended(8) == std::llround((9 + 25 + 4 + 36 + 64) / 24.0));
  CHECK(pairs_of(marks, {.given = 8})->attended(8) == 8);
  CHECK(pairs_of(marks, {.most = 40, .pack = true})->text() ==
        "5 pairs of 9 tokens at most, packed into 1 sequence of 24, 92 % full");
  // One that fits exactly into what another has left: 4 and 5 tokens in a row of 9.
  CHECK(all_of(*pairs_of({2, 1, 1, 1, 2, 1, 1, 1, 1}, {.given = 8, .pack = true})) ==
        Ids{1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("pairs that are too long are cut, and those without a completion then left out",
          "[pairs]") {
  const Ids marks{2, 1, 1, 1, 2, 0, 0, 1, 2, 1};
  const auto pairs = pairs_of(marks, {.given = 2, .most = 100});
  CHECK(pairs->row() == 3);
  CHECK(all_of(*pairs) == Ids{1, 2, 3, 9, 10, 0});
  CHECK(pairs->text() ==
        "2 pairs of 4 tokens at most; 1 longer than 3 cut; 1 left out, without a completion in 3");
  // One that is left out does not make the rows of the others long.
  CHECK(pairs_of({2, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, {.most = 16})
            ->row() == 9);
  CHECK(pairs_of(marks, {.most = 2})->row() == 3);
  CHECK(pairs->checksum() != pairs_of({2, 1, 1, 0, 2, 0, 0, 1, 2, 1}, {.given = 2})->checksum());
  CHECK_THAT(error_message([] {
               pairs_of({2, 0, 0, 1}, {.given = 2})->require_some("t.bin");
             }),
             Contains("t.bin: no pair has a token of its completion among the first 3"));
  CHECK_THAT(error_message([] {
               pairs_of({0, 1}, {.most = 8});
             }),
             Contains("t.mask does not begin with the first token of a pair"));
  CHECK_THAT(error_message([] {
               pairs_of({2, 4}, {.most = 8});
             }),
             Contains("t.mask has the mark 4 at position 1"));
  CHECK_THAT(error_message([] {
               const Pairs shorter(tokens_in_memory(Ids{1, 2, 3}), tokens_in_memory(Ids{2, 1}),
                                   {.most = 8}, {"t.bin", "t.mask"});
             }),
             Contains("t.mask has 2 marks for the 3 tokens of t.bin"));
}

TEST_CASE("every epoch has every pair once, and each rank knows what counts in the whole batch",
          "[pairs]") {
  Ids marks;
  for (int pair = 0; pair < 10; ++pair) {
    marks.push_back(2);
    marks.insert(marks.end(), static_cast<std::size_t>(pair) + 1, 1);
  }
  const auto pairs = pairs_of(marks, {.given = 12});
  const SequenceSampler sampler(SequenceSampler::Order::shuffled, 1, pairs->size(), 4, 12,
                                pairs->row());
  CHECK(sampler.epoch() == 10);
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::int64_t> starts;
    for (std::int64_t i = 0; i < 10; ++i)
      starts.insert(sampler.start_of(10 * epoch + i));
    CHECK(starts.size() == 10);
    CHECK(*starts.rbegin() == 9 * 13);
  }
  const SequenceSampler in_order(SequenceSampler::Order::sequential, 1, pairs->size(), 4, 12,
                                 pairs->row());
  CHECK(in_order.epoch() == 10);
  CHECK(in_order.start_of(9) == 9 * 13);
  CHECK(in_order.start_of(11) == 13);
  BatchLoader whole(*pairs, in_order, 4, 12), second(*pairs, in_order, 4, 12, 2, 2);
  const Batch all = whole.batch(1), share = second.batch(1);
  CHECK(all.counted == 5 + 6 + 7 + 8);
  CHECK(share.counted == all.counted);
  CHECK(share.targets == Ids(all.targets.begin() + 24, all.targets.end()));
  CHECK(std::ranges::count_if(all.targets, [](auto id) { return id != no_target; }) == 26);
}

TEST_CASE("prepare_data writes pairs of which the completion and the end count", "[pairs]") {
  const TextFolder dir;
  const std::string input = dir.put("p.jsonl", lines);
  const auto make = [&](const Arguments& more) {
    Arguments all{"--input", input, "--pairs", "--output", dir.at("out")};
    all.insert(all.end(), more.begin(), more.end());
    return run_program("prepare_data", all);
  };
  const ProgramResult made = make({"--val-fraction", "0"});
  CHECK(made.err == "");
  CHECK_THAT(made.out, Contains("3 training and 0 validation pairs (bytes)"));
  CHECK(file_ids(dir.at("out/train.bin")) == Ids{'1', '+', '1', '=', '2', 'h', 'i', 'y', 'o', 'u'});
  CHECK(file_ids(dir.at("out/train.mask")) == Ids{2, 0, 0, 0, 1, 2, 1, 2, 1, 1});
  CHECK_FALSE(std::filesystem::exists(dir.at("out/val.bin")));

  // Whole pairs are for validation, however few there are.
  CHECK(make({"--val-fraction", "0.4"}).err == "");
  CHECK(file_ids(dir.at("out/train.bin")).size() + file_ids(dir.at("out/val.bin")).size() == 10);
  CHECK(file_ids(dir.at("out/val.mask")).front() >= 2);
  const Dataset data = open({dir.at("out")});
  CHECK(data.train->row() == 9);
  CHECK(data.val->row() == 9);
  CHECK(data.notes.size() == 2);

  // A part that has lost its mask would be learned whole.
  std::filesystem::rename(dir.at("out/val.mask"), dir.at("val.mask"));
  CHECK_THAT(error_message([&] { open({dir.at("out")}); }), Contains("val.bin has none"));
  std::filesystem::rename(dir.at("val.mask"), dir.at("out/val.mask"));
  CHECK_THAT(error_message([&] { open({dir.at("out/val.mask")}); }), Contains("the mask of"));

  // A text in the same folder later has no mask.
  run_program("prepare_data",
              {"--input", dir.put("t.txt", std::string(99, 'x')), "--output", dir.at("out")});
  CHECK_FALSE(std::filesystem::exists(dir.at("out/train.mask")));
  CHECK(open({dir.at("out")}).train->row() == 0);
}

TEST_CASE("pairs that cannot be used are one line", "[pairs]") {
  const TextFolder dir;
  const std::string input = dir.put("p.jsonl", lines);
  const auto refused = [&](const std::string& file, const std::string& flags) {
    Arguments all{"--input", file, "--pairs", "--output", dir.at("out")};
    for (const std::string& word : words(flags))
      all.push_back(word);
    const ProgramResult result = run_program("prepare_data", all);
    CHECK(result.exit_code == 2);
    CHECK(std::ranges::count(result.err, '\n') == 1);
    return result.err;
  };
  CHECK_THAT(refused(input, "--shard-tokens 5"), Contains("--shard-tokens"));
  CHECK_THAT(refused(input, "--text-format text"), Contains("lines of JSON"));
  CHECK_THAT(refused(input, "--prompt-field completion"), Contains("same field"));
  CHECK_THAT(refused(input, "--text-field prompt"), Contains("--text-field"));
  CHECK_THAT(refused(dir.put("a.jsonl", "{\"prompt\":\"x\"}\n"), ""),
             Contains("1 line without the field \"completion\""));
  CHECK_THAT(refused(dir.put("b.jsonl", R"({"prompt":"x","completion":""})"), ""),
             Contains("1 line with an empty completion"));
  CHECK_THAT(refused(dir.put("c.jsonl", R"({"prompt":["x"],"completion":"y"})"), ""),
             Contains("the field \"prompt\" is"));
  CHECK_THAT(refused(dir.put("d.jsonl", ""), ""), Contains("empty"));
  CHECK_THAT(refused(dir.put("e.txt", "no JSON\n"), ""), Contains("e.txt:1"));
}

TEST_CASE("both parts have rows as long as the longest pair of either needs", "[pairs]") {
  const TextFolder dir;
  std::string text;
  for (int i = 0; i < 30; ++i)
    text += R"({"prompt":"q)" + std::to_string(i) + R"(","completion":"a"})" + "\n";
  const std::string longer = R"({"prompt":")" + std::string(40, 'x') + R"(","completion":"y"})";
  const auto make = [&](const std::string& lines_of, const std::string& folder) {
    const std::string input = dir.put("p.jsonl", lines_of);
    CHECK(run_program("prepare_data", {"--input", input, "--pairs", "--output", dir.at(folder)})
              .err == "");
  };
  make(longer, "long");
  for (const std::string part : {"train", "val"}) {
    CAPTURE(part);
    make(text, "short");
    for (const std::string ending : {".bin", ".mask"})
      std::filesystem::copy_file(dir.at("long/train" + ending), dir.at("short/" + part + ending),
                                 std::filesystem::copy_options::overwrite_existing);
    const Dataset data = open({dir.at("short")});
    CHECK(data.train->row() == 41);
    CHECK(data.val->row() == 41);
  }
}

TEST_CASE("a run learns completions, goes on to the bit, and is evaluated as it validates",
          "[pairs]") {
  const TextFolder dir;
  std::string text;
  // As many that validation takes two batches, of which the second is not full.
  for (int a = 0; a < 40; ++a)
    for (int b = 0; b < 40; ++b)
      text += "{\"prompt\":\"" + std::to_string(a) + "+" + std::to_string(b) +
              "=\",\"completion\":\"" + std::to_string(a + b) + "\\n\"}\n";
  CHECK(run_program("prepare_data",
                    {"--input", dir.put("p.jsonl", text), "--pairs", "--output", dir.at("data")})
            .err == "");
  const auto train = [&](const std::string& output, const std::string& flags) {
    const ProgramResult result = run_program(
        "train_gpt2",
        words("--device cpu --threads 1 --n-layer 1 --n-head 2 --n-embd 32 --context 32 "
              "--batch-size 8 --peak-tflops 1 --sample-tokens 0 --val-steps 30 --save-every 4 "
              "--data " +
              dir.at("data") + " --output " + dir.at(output) + " " + flags));
    INFO(result.err);
    CHECK(result.exit_code == 0);
    return result.out;
  };
  const std::string out = train("whole", "--steps 8 --micro-batch 2");
  CHECK_THAT(out, Contains("1438 pairs (bytes), 162 pairs for validation"));
  CHECK_THAT(out, Contains("8 sequences x 8 tokens"));
  train("parts", "--steps 4 --micro-batch 8");
  train("parts", "--steps 8 --micro-batch 2");
  CHECK(std::filesystem::exists(dir.at("parts/model/model.safetensors")));
  const auto loss_in = [&](const std::string& data, const std::string& flags = "") {
    Arguments all{"--model", dir.at("whole/model"), "--data", dir.at(data), "--json"};
    for (const std::string& word : words(flags))
      all.push_back(word);
    const ProgramResult result = run_program("evaluate", all);
    INFO(result.err);
    CHECK(result.exit_code == 0);
    return nlohmann::json::parse(result.out);
  };
  const auto val = loss_in("data");
  CHECK(val.at("sequences") == 162);
  CHECK(val.at("tokens").get<std::int64_t>() == val.at("bytes").get<std::int64_t>());
  CHECK_THAT(out, Contains(fmt::format("validation {:.4f}", val.at("loss").get<double>())));
  CHECK(loss_in("data/train.bin").at("sequences") == 1438);
  // Whole rows of 8 tokens are computed, and one at least.
  const auto one_row = loss_in("data", "--max-tokens 8");
  CHECK(one_row.at("sequences") == 1);
  for (const char* const fewer : {"1", "7", "15"})
    CHECK(loss_in("data", std::string("--max-tokens ") + fewer) == one_row);
  CHECK(loss_in("data", "--max-tokens 16").at("sequences") == 2);
  CHECK(loss_in("data", "--pack --max-tokens 1").at("sequences") == 1);

  const auto packed = loss_in("data", "--pack");
  CHECK(packed.at("sequences") < 50);
  CHECK(packed.at("tokens") == val.at("tokens"));
  CHECK(packed.at("loss").get<double>() == Approx(val.at("loss").get<double>()).epsilon(1e-6));
  const std::string rows = train("rows", "--pack --steps 3");
  CHECK_THAT(rows, Contains("sequences of pairs for validation"));
  CHECK_THAT(rows, Contains("8 sequences x 32 tokens"));
  CHECK_THAT(rows, Contains("1438 pairs of 9 tokens at most, packed into"));
  const std::string text_file = dir.put("t.txt", std::string(999, 'x'));
  for (const auto& [program, flags] : {std::pair{"train_gpt2", "--output " + dir.at("none")},
                                       std::pair{"evaluate", "--model " + dir.at("whole/model")}}) {
    const ProgramResult refused =
        run_program(program, words("--pack --data " + text_file + " " + flags));
    CHECK(refused.exit_code == 2);
    CHECK_THAT(refused.err, Contains("--pack is for pairs, and " + text_file + " has none"));
  }

  const ProgramResult graph = run_program(
      "train_gpt2", words("--device cuda --n-layer 1 --n-head 2 --n-embd 32 --context 32 "
                          "--cuda-graph --batch-size 8 --data " +
                          dir.at("data") + " --output " + dir.at("graph")));
  CHECK(graph.exit_code == 2);
  if (have_gpu()) CHECK_THAT(graph.err, Contains("in batches of pairs it differs"));
}

}  // namespace sluice::test::pairs_test
