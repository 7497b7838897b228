#include <numeric>
#include <tuple>

#include "apps/data/dataset.h"
#include "apps/data/encode_text.h"
#include "apps/data/tokens/prepared_folder.h"
#include "engine/io/token_file.h"
#include "models/text/byte_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/gradcheck.h"
#include "tests/support/program.h"
#include "tests/support/text_files.h"

// Tests the way from documents and shards to the tokens of training and validation.

namespace sluice::test::data_sources_test {
namespace {

using Ids = std::vector<std::int32_t>;
using Strings = std::vector<std::string>;

Ids file_ids(const fs::path& path) {
  return all_of(*open_token_file(path, 65536));
}

std::string text_of(const std::shared_ptr<TokenSource>& tokens) {
  return tokens ? ByteTokenizer().decode(all_of(*tokens)) : "(none)";
}

std::string verse(int number) {
  std::string text = "poem " + std::to_string(number) + "\n";
  for (int i = 0; i < 5 + number * 7 % 11; ++i)
    text += "line " + std::to_string(i * number) + ", \xC3\xA4\xE2\x82\xAC\n";
  return text;
}

void write_shard(const fs::path& path, const Ids& ids, bool header = false) {
  TokenFileWriter writer(path);
  writer.append(ids);
  writer.finish();
  if (!header) return;
  std::vector<std::int32_t> begin(256, 0);
  begin[0] = 20240520;
  begin[1] = 1;
  begin[2] = static_cast<std::int32_t>(ids.size());
  write_file(path,
             std::string(reinterpret_cast<const char*>(begin.data()), 1024) + read_file(path));
}

}  // namespace

TEST_CASE("one plain text has the tokens and the border that it always had") {
  const TextFolder dir;
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += verse(i) + (i % 3 == 0 ? "<|endoftext|>" : "\r\n\t");
  // Multiples of the size of a piece, and all borders inside a character.
  const auto more = GENERATE(0, 1, 2, 3, 300'000);
  text.resize(text.size() - text.size() % 10);
  for (int i = 0; i < more; ++i)
    text += i % 20 == 19 ? "a\nb" : "\xE2\x82\xAC";
  const std::string file = dir.put("a.txt", text);
  std::size_t border = text.size() * 9 / 10;
  while ((static_cast<unsigned char>(text[border]) & 0xC0) == 0x80)
    --border;
  const auto data = open({file});
  CHECK((text_of(data.train) == text.substr(0, border)));
  CHECK((text_of(data.val) == text.substr(border)));
  CHECK(data.notes.empty());
  // The same under the tokenizer that has a token between documents: there is one document.
  const auto tokenizer = tokenizer_with_end();
  const auto merged = open({file}, {}, tokenizer);
  CHECK((all_of(*merged.train) == tokenizer.encode(text.substr(0, border))));
  CHECK((all_of(*merged.val) == tokenizer.encode(text.substr(border))));
}

TEST_CASE("documents are separated by the tokenizer's token, or by a newline where there is none") {
  const TextFolder dir;
  const Strings files{dir.put("a", "A"), dir.put("b", "B\n"), dir.put("c", "C")};
  const std::string val = dir.put("v.jsonl", "{\"text\": \"x\"}\n{\"text\": \"y\"}\n");
  const auto bytes = open(files, {val});
  CHECK(text_of(bytes.train) == "A\nB\nC");
  CHECK(text_of(bytes.val) == "x\ny");
  REQUIRE(bytes.notes.size() == 2);
  CHECK(bytes.notes[0] == "3 files, 3 documents, 4 bytes");
  CHECK(bytes.notes[1] == "1 file, 2 documents, 2 bytes for validation");
  const auto tokens = open(files, {val}, tokenizer_with_end());
  CHECK(all_of(*tokens.train) == Ids{'A', 256, 'B', '\n', 256, 'C'});
  CHECK(all_of(*tokens.val) == Ids{'x', 256, 'y'});
  const CharTokenizer chars = characters_of(TextSource(find_data("--data", files), {}, dir.path()));
  CHECK(chars.vocab_size() == 4);
  CHECK(text_of(open({files[0], files[2]}, {}, ByteTokenizer()).train) == "A");
}

TEST_CASE("<|endoftext|> in a text is a token only where --special says so") {
  const TextFolder dir;
  const std::string text = "a<|endoftext|>b", file = dir.put("a.txt", text);
  const auto tokenizer = tokenizer_with_end();
  const Strings val{file};
  CHECK(all_of(*open({file}, val, tokenizer).train) == Ids(text.begin(), text.end()));
  const auto special = open({file}, val, tokenizer, {.special = true});
  CHECK(all_of(*special.train) == Ids{'a', 256, 'b'});
  CHECK(all_of(*special.val) == Ids{'a', 256, 'b'});
  CHECK_THAT(error_message([] { require_special(ByteTokenizer(), true); }), Contains("--special"));
  CHECK(error_message([&] { require_special(tokenizer, true); }) == "(no error)");
}

TEST_CASE("few documents are divided by bytes, many by document") {
  std::vector<DocumentFacts> documents{{100, 1}, {300, 2}, {600, 3}};
  CHECK(training_bytes(documents, 0.9, 1) == std::vector<std::uint64_t>{100, 300, 500});
  CHECK(training_bytes(documents, 0.2, 1) == std::vector<std::uint64_t>{100, 100, 0});
  CHECK(training_bytes(documents, 0.4, 1) == std::vector<std::uint64_t>{100, 300, 0});
  CHECK(training_bytes(documents, 1, 1) == std::vector<std::uint64_t>{100, 300, 600});
  CHECK(training_bytes(std::vector<DocumentFacts>{{1, 1}}, 0.9, 1).at(0) == 1);
  // In binary these products are a little less than whole numbers.
  for (const auto& [bytes, fraction, training] :
       {std::tuple{100, 0.57, 57}, {100, 0.29, 29}, {1000, 0.999, 999}, {1000, 1 - 0.1, 900}})
    CHECK(training_bytes(std::vector{DocumentFacts{static_cast<std::uint64_t>(bytes), 1}}, fraction,
                         1)
              .at(0) == static_cast<std::uint64_t>(training));

  documents.clear();
  std::uint64_t all = 0;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    documents.push_back({1 + i * 7919 % 997, i * 2654435761U});
    all += documents.back().bytes;
  }
  const auto training = training_bytes(documents, 0.9, 1);
  std::uint64_t for_validation = 0;
  int count = 0;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    if (training[i] == documents[i].bytes) continue;
    REQUIRE(training[i] == 0);
    for_validation += documents[i].bytes;
    ++count;
  }
  CHECK(for_validation <= all - all * 9 / 10);
  CHECK(for_validation > all / 11);
  CHECK(count > 50);
  CHECK(training_bytes(documents, 0.9, 1) == training);
  CHECK(training_bytes(documents, 0.9, 2) != training);
  CHECK(training_bytes(documents, 1, 1) != training);
  // The side is the document's, wherever it stands.
  std::vector<DocumentFacts> turned(documents.rbegin(), documents.rend());
  auto back = training_bytes(turned, 0.9, 1);
  std::ranges::reverse(back);
  CHECK(back == training);
}

TEST_CASE("there are documents on both sides, however unequal they are") {
  std::vector<DocumentFacts> documents;
  for (std::uint32_t i = 0; i < few_documents; ++i)
    documents.push_back({100, i});
  const auto drawn = [&](double fraction) {
    const auto training = training_bytes(documents, fraction, 1);
    return std::ranges::count(training, 0U);
  };
  CHECK(drawn(0.9) == 1);
  CHECK(drawn(0.95) == 1);  // none fits: the smallest
  CHECK(drawn(0.1) == 9);
  CHECK(drawn(1) == 0);
  documents[4].bytes = 1'000'000;
  const auto training = training_bytes(documents, 0.9, 1);
  CHECK(training[4] == 1'000'000);
  CHECK(std::ranges::count(training, 0U) == 9);
}

TEST_CASE("the same files in another order have the same documents for validation") {
  const TextFolder dir;
  Strings files;
  for (int i = 0; i < 20; ++i)
    files.push_back(dir.put("d/" + std::to_string(i) + ".txt", verse(i)));
  const auto folder = open({dir.at("d")});
  const auto lines = [](const std::string& text) {
    std::multiset<std::string> poems;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.size(), text.find("poem", at + 1));
      poems.insert(text.substr(at, end - at));
      at = end;
    }
    return poems;
  };
  REQUIRE(folder.val);
  const auto val = lines(text_of(folder.val)), train = lines(text_of(folder.train));
  CHECK(val.size() + train.size() == 20);
  CHECK_THAT(folder.notes.at(0), Contains("20 files, 20 documents") &&
                                     Contains(std::to_string(val.size()) + " for validation"));
  std::ranges::reverse(files);
  const auto listed = open(files);
  CHECK(lines(text_of(listed.val)) == val);
  CHECK(lines(text_of(listed.train)) == train);
  CHECK(lines(text_of(open(files, {}, ByteTokenizer(), {.split_seed = 7}).val)) != val);
}

TEST_CASE("a series of token files reads as one, by folder, pattern or its first file") {
  const TextFolder dir;
  const bool header = GENERATE(false, true);
  Ids ids(1000);
  std::iota(ids.begin(), ids.end(), 0);
  const std::size_t ends[]{0, 400, 401, 1000};
  for (std::size_t i = 0; i < 3; ++i)
    write_shard(dir.path() / ("web_train_00000" + std::to_string(i + 1) + ".bin"),
                {ids.begin() + static_cast<std::ptrdiff_t>(ends[i]),
                 ids.begin() + static_cast<std::ptrdiff_t>(ends[i + 1])},
                header);
  write_shard(dir.path() / "web_val_000000.bin", {5, 6, 7}, header);
  const auto folder = open({dir.path().string()});
  CHECK(all_of(*folder.train) == ids);
  CHECK(all_of(*folder.val) == Ids{5, 6, 7});
  const auto pattern = open({dir.at("web_*.bin")});
  CHECK(all_of(*pattern.train) == ids);
  CHECK(all_of(*pattern.val) == Ids{5, 6, 7});
  const auto first = open({dir.at("web_train_000001.bin")}, {dir.at("web_val_000000.bin")});
  CHECK(all_of(*first.train) == ids);
  CHECK(all_of(*first.val) == Ids{5, 6, 7});
  CHECK(open({dir.at("web_train_000002.bin")}).train->size() == 1);
  for (const std::int64_t start : {0, 399, 400, 401, 990}) {
    Ids some(10);
    folder.train->read(start, some);
    CHECK(some == Ids(ids.begin() + start, ids.begin() + start + 10));
  }
  Ids many(3);
  CHECK_THAT(error_message([&] { folder.train->read(998, many); }), Contains("000003.bin"));
  CHECK(fingerprint(*folder.train) == fingerprint(*tokens_in_memory(ids)));
}

TEST_CASE("series with a gap, of two formats or beside what they would replace are refused") {
  const TextFolder dir;
  const auto shard = [&](const std::string& name, bool header = false) {
    fs::create_directories((dir.path() / name).parent_path());
    write_shard(dir.path() / name, {1, 2, 3}, header);
    return dir.at(name);
  };
  const auto refusal = [&](const Strings& names) { return error_message([&] { open(names); }); };
  shard("gap/t_000001.bin"), shard("gap/t_000003.bin");
  CHECK_THAT(refusal({dir.at("gap")}), Contains("gap/t_000002.bin is missing"));
  CHECK_THAT(refusal({dir.at("gap/*.bin")}), Contains("gap/t_000002.bin is missing"));
  CHECK_THAT(refusal({dir.at("gap/t_000001.bin")}), Contains("gap/t_000002.bin is missing"));
  shard("late/t_000002.bin"), shard("late/t_000003.bin");
  CHECK_THAT(refusal({dir.at("late")}), Contains("late/t_000001.bin is missing"));
  CHECK(open({dir.at("late/*.bin")}).train->size() == 6);  // who names them knows
  shard("two/t_000001.bin"), shard("two/t_000002.bin", true);
  CHECK_THAT(refusal({dir.at("two")}), Contains("two formats"));
  shard("both/train.bin"), shard("both/train_000001.bin");
  CHECK_THAT(refusal({dir.at("both")}), Contains("holds both train.bin and train_000001.bin"));
  shard("val/val.bin");
  CHECK_THAT(refusal({dir.at("val")}), Contains("for validation alone"));
  shard("mixed/t_000001.bin"), dir.put("mixed/a.txt", "text");
  CHECK_THAT(refusal({dir.at("mixed")}), Contains("t_000001.bin") && Contains("a.txt"));
  shard("plain/train.bin"), dir.put("plain/notes.txt", "text");
  CHECK(open({dir.at("plain")}).train->size() == 3);  // as it always was
  CHECK_THAT(refusal({dir.at("plain"), dir.at("plain/train.bin")}), Contains("folder of tokens"));
  CHECK_THAT(error_message([&] { open({dir.at("plain")}, {dir.at("plain")}); }),
             Contains("has no val.bin"));
}

TEST_CASE("more shards than a process may usually have open") {
  const TextFolder dir;
  Ids ids;
  for (int i = 0; i < 1100; ++i) {
    write_file(dir.path() / ("s_" + std::to_string(100000 + i) + ".bin"), std::string(2, '\1'));
    ids.push_back(257);
  }
  CHECK(all_of(*open({dir.at("s_*.bin")}).train) == ids);
}

TEST_CASE("prepare_data writes what training would have made of the same sources") {
  const TextFolder dir;
  for (int i = 0; i < 25; ++i)
    dir.put("d/" + std::to_string(i) + ".txt", verse(i));
  dir.put("d/empty.txt", "");
  const std::string out =
      run_well("prepare_data", {"--input", dir.at("d"), "--output", dir.at("p")});
  CHECK_THAT(out, Contains("25 files, 25 documents") &&
                      Contains("left out 1 empty file (" + dir.at("d/empty.txt")));
  const auto text = open({dir.at("d")}), prepared = open({dir.at("p")});
  CHECK(text_of(prepared.train) == text_of(text.train));
  CHECK(text_of(prepared.val) == text_of(text.val));

  run_well("prepare_data",
           {"--input", dir.at("d"), "--output", dir.at("p"), "--shard-tokens", "1000"});
  CHECK_FALSE(fs::exists(dir.at("p/train.bin")));
  CHECK_FALSE(fs::exists(dir.at("p/val.bin")));
  CHECK(file_ids(dir.path() / "p" / "train_000001.bin").size() == 1000);
  const auto shards = open({dir.at("p")});
  CHECK(text_of(shards.train) == text_of(text.train));
  CHECK(text_of(shards.val) == text_of(text.val));
  run_well("prepare_data",
           {"--input", dir.at("d"), "--output", dir.at("p"), "--val-fraction", "0"});
  CHECK_FALSE(fs::exists(dir.at("p/train_000001.bin")));
  CHECK_FALSE(open({dir.at("p")}).val);

  // Standard input is a file in this test and a pipe for a user.
  const auto piped =
      run_program("prepare_data", {"--input", "-", "--encode-only", dir.at("all.bin")}, verse(3));
  CHECK(piped.err == "");
  CHECK(ByteTokenizer().decode(file_ids(dir.at("all.bin"))) == verse(3));
}

TEST_CASE("new tokens never lie beside old ones, wherever publishing ends") {
  const TextFolder dir;
  const auto make = [&](std::int32_t id) {
    ShardedPart train(dir.path(), "train", 2), val(dir.path(), "val", 0);
    train.append(Ids{id, id, id});
    val.append(Ids{id});
    publish(dir.path(), ByteTokenizer(), {&val, &train});
  };
  make(1);
  {
    ShardedPart train(dir.path(), "train", 2);
    train.append(Ids{9, 9, 9});
    train.complete();  // and the process ends here
  }
  CHECK(all_of(*open({dir.path().string()}).train) == Ids{1, 1, 1});
  CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator{}) ==
        7);  // three for tokens, their description, three of the tokenizer
  // It ends when the old tokens are gone: the tokenizer's file cannot be replaced.
  fs::remove(dir.path() / "bytes.json");
  fs::create_directories(dir.path() / "bytes.json" / "x");
  CHECK_THAT(error_message([&] { make(2); }), Contains("bytes.json"));
  CHECK_THAT(error_message([&] { open({dir.path().string()}); }), Contains("neither tokens"));
  fs::remove_all(dir.path() / "bytes.json");
  make(3);
  CHECK(all_of(*open({dir.path().string()}).train) == Ids{3, 3, 3});
  // Or when some of the training tokens have their names, the last first.
  fs::remove(dir.path() / "train_000001.bin");
  CHECK_THAT(error_message([&] { open({dir.path().string()}); }),
             Contains("train_000001.bin is missing"));
}

TEST_CASE("several sources of a command line, and of its configuration file, train the same run") {
  const TextFolder dir;
  const std::string a = dir.put("a b.txt", verse(1) + verse(2)), c = dir.put("c,d.txt", verse(7));
  const Arguments small = words(
      "--n-layer 1 --n-head 1 --n-embd 8 --context 8 --batch-size 2 "
      "--threads 1 --steps 2 --sample-tokens 0");
  Arguments flags = small;
  flags.insert(flags.end(), {"--data", a, "--data", c, "--output", dir.at("one")});
  const std::string out = run_well("train_gpt2", flags);
  CHECK_THAT(out, Contains("a b.txt and 1 more") && Contains("2 files, 2 documents"));
  flags = small;
  flags.insert(flags.end(), {"--data", a, c, "--output", dir.at("two")});
  run_well("train_gpt2", flags);
  run_well("train_gpt2", {"--config", dir.at("one/config.toml"), "--output", dir.at("three")});
  const std::string weights = read_file(dir.path() / "one/model/model.safetensors");
  CHECK((read_file(dir.path() / "two/model/model.safetensors") == weights));
  CHECK((read_file(dir.path() / "three/model/model.safetensors") == weights));
}

TEST_CASE("sources that cannot be read end the programs with one line and exit code 2") {
  const TextFolder dir;
  const std::string text = dir.put("a.txt", verse(1)), out = dir.at("out");
  dir.put("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n");
  const std::string bin = dir.put("t.bin", "abcd");
  struct Row {
    std::string program;
    Arguments flags;
    std::string word;
  };
  const Row rows[] = {
      {"prepare_data", {"--input", dir.at("bad.jsonl"), "--output", out}, "bad.jsonl:2"},
      {"prepare_data", {"--input", bin, "--output", out}, "file of tokens"},
      {"prepare_data", {"--input", text, "--encode-only", text}, "is there already"},
      {"prepare_data", {"--input", "-", "--output", out}, "the standard input holds no text"},
      {"prepare_data", {"--input", text, "--output", out, "--special"}, "--special"},
      {"prepare_data",
       {"--input", text, "--encode-only", out, "--shard-tokens", "5"},
       "--shard-tokens"},
      {"prepare_data", {"--input", text, "--output", out, "--shard-tokens", "0"}, "--shard-tokens"},
      {"train_gpt2", {"--data", text, bin, "--output", out}, "give one kind"},
      {"train_gpt2", {"--data", dir.at("*.md"), "--output", out}, "no file matches"},
      {"train_gpt2", {"--data", "-", "--val-data", "-", "--output", out}, "can be read once"},
      {"train_gpt2", {"--data", "-", "--output", out}, "the standard input holds no text"},
      {"train_gpt2", {"--data", "-", "--dp", "2"}, "2 ranks"},
      {"evaluate", {"--model", out, "--data", text, "--text-format", "xml"}, "xml"},
  };
  for (const auto& [program, flags, word] : rows) {
    const ProgramResult result = run_program(program, flags);
    INFO(program << " " << flags[1] << ": " << word);
    CHECK(result.exit_code == 2);
    CHECK(count_lines(result.err) == 1);
    CHECK_THAT(result.err, Contains(word));
    CHECK_FALSE(fs::exists(out));
  }
}

}  // namespace sluice::test::data_sources_test
