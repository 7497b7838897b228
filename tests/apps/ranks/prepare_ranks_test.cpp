#include "apps/cli/shell_quote.h"
#include "apps/data/tokens/token_source.h"
#include "models/text/bpe/bpe_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/text_files.h"
#include "tests/support/training/ranks.h"

// prepare_data by mpirun: the files are those of one process, byte for byte.

namespace sluice::test::prepare_ranks_test {
namespace {

/// Runs prepare_data on so many ranks; `first`: other arguments of rank 0 alone.
ProgramResult prepare(int ranks, const Arguments& arguments, const Arguments& first = {}) {
  const TempDir temporary;  // one for each job: they would make the same folder for mpirun
  Arguments all{"TMPDIR=" + temporary.path().string()};
  const std::string program = (fs::path(SLUICE_BIN_DIR) / "prepare_data").string();
  if (ranks > 1) {
    const Arguments given = mpirun_flags();
    all.emplace_back(SLUICE_MPIRUN);
    all.insert(all.end(), given.begin(), given.end());
    all.insert(all.end(), {"-n", std::to_string(ranks)});
  }
  if (!first.empty()) {
    // mpirun's own way to say so, a second command behind a colon, makes that of Open MPI 5.0.7
    // crash.
    std::string script = R"([ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] && exec "$0")";
    for (const std::string& word : first)
      script += " " + quoted(word);
    all.insert(all.end(), {"/bin/sh", "-c", script + R"(; exec "$0" "$@")"});
  }
  all.push_back(program);
  all.insert(all.end(), arguments.begin(), arguments.end());
  return RunningProgram("/usr/bin/env", all).finish(100);
}

/// Returns names and bytes of all files in a folder.
std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = read_file(entry.path());
  return files;
}

std::string lines(int count, const std::string& of) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += of + " " + std::to_string(i * 7919 % 10007) + ",\n";
  return text;
}

/// Texts of several rounds: one of many turns, one that cannot be cut, and many of a few bytes.
void put_texts(const TextFolder& dir) {
  dir.put("texts/a.txt", lines(150'000, "a long text of which each\nrank has many turns"));
  dir.put("texts/b.txt", std::string(1'500'000, '7') + "end");  // no newline between letters
  for (int i = 0; i < 30; ++i)
    dir.put("texts/c" + std::to_string(i) + ".txt", lines(i * i * 10 + 1, "a short one"));
}

/// A byte-level tokenizer with <|endoftext|>, and `more` tokens that no text has.
void put_tokenizer(const fs::path& folder, int more) {
  BpeTables tables = tokenizer_with_end_tables();
  for (int i = 0; i < more; ++i)
    tables.symbols.push_back("<" + std::to_string(i) + ">");
  BpeTokenizer(tables).save(folder);
}

/// Checks that ranks print what one process prints, and write the same files.
void check_alone_and_together(const TextFolder& dir, const Arguments& arguments) {
  const auto with_output = [&](const std::string& name) {
    Arguments all = arguments;
    all.insert(all.end(), {"--output", dir.at(name)});
    return all;
  };
  const ProgramResult alone = prepare(1, with_output("alone"));
  INFO(alone.err);
  REQUIRE(alone.exit_code == 0);
  const auto expected = files_of(dir.path() / "alone");
  for (const int ranks : {2, 3}) {
    const std::string name = "by" + std::to_string(ranks);
    const ProgramResult together = prepare(ranks, with_output(name));
    INFO(together.err);
    REQUIRE(together.exit_code == 0);
    CHECK(together.err.empty());
    const auto shortened = [&](std::string text, const std::string& folder) {
      const auto at = text.find(dir.at(folder));
      return text.replace(at, dir.at(folder).size(), "FOLDER");
    };
    CHECK(shortened(together.out, name) == shortened(alone.out, "alone"));
    CHECK((files_of(dir.path() / name) == expected));
    fs::remove_all(dir.path() / name);
  }
  fs::remove_all(dir.path() / "alone");
}

}  // namespace

TEST_CASE("ranks write the token files of one process", "[prepare]") {
  if (!have_mpirun()) return;
  const TextFolder dir;
  put_texts(dir);
  put_tokenizer(dir.path() / "narrow", 0);
  put_tokenizer(dir.path() / "wide", 70'000);
  const std::string texts = dir.at("texts");
  for (const Arguments& more :
       {Arguments{}, Arguments{"--tokenizer", "chars", "--val-fraction", "0"},
        Arguments{"--tokenizer-dir", dir.at("narrow"), "--val-fraction", "0.3"},
        Arguments{"--tokenizer-dir", dir.at("wide")}}) {
    Arguments all{"--input", texts};
    all.insert(all.end(), more.begin(), more.end());
    INFO((more.empty() ? "bytes" : more[1]));
    check_alone_and_together(dir, all);
  }
}

TEST_CASE("ranks write one file of tokens as one process does", "[prepare]") {
  if (!have_mpirun()) return;
  const TextFolder dir;
  put_texts(dir);
  for (const int ranks : {1, 3}) {
    const std::string file = dir.at("by" + std::to_string(ranks) + ".bin");
    const ProgramResult result =
        prepare(ranks, {"--input", dir.at("texts"), "--encode-only", file, "--tokenizer", "bytes"});
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    CHECK_THAT(result.out, Contains(" tokens in " + file));
  }
  CHECK((read_file(dir.path() / "by3.bin") == read_file(dir.path() / "by1.bin")));
  CHECK(read_file(dir.path() / "by3.bin").size() > 8'000'000);
  // The temporary file has become the result.
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir.path()))
    ++entries;
  CHECK(entries == 3);
}

TEST_CASE("ranks write the pairs and masks of one process", "[prepare][pairs]") {
  if (!have_mpirun()) return;
  const TextFolder dir;
  std::string pairs;
  for (int i = 0; i < 60'000; ++i)
    pairs += R"({"prompt":"what is )" + std::to_string(i) + R"( times two? ","completion":")" +
             (i % 50 == 0 ? "" : std::to_string(2 * i) + std::string(i % 97, '.')) + "\"}\n";
  put_tokenizer(dir.path() / "narrow", 0);
  check_alone_and_together(dir, {"--input", dir.put("pairs.jsonl", pairs), "--pairs",
                                 "--tokenizer-dir", dir.at("narrow")});
}

TEST_CASE("ranks replace data, or leave it as it is", "[prepare]") {
  if (!have_mpirun()) return;
  const TextFolder dir;
  const std::string one = dir.put("one.txt", lines(1000, "one")),
                    two = dir.put("two.txt", lines(2000, "two"));
  REQUIRE(prepare(2, {"--input", one, "--output", dir.at("data")}).exit_code == 0);
  const auto first = files_of(dir.path() / "data");
  // Ranks that read different texts, or prepare them in different ways.
  const ProgramResult unlike = prepare(2, {"--input", two, "--output", dir.at("data")},
                                       {"--input", one, "--output", dir.at("data")});
  CHECK(unlike.exit_code == 2);
  CHECK_THAT(unlike.err,
             Contains("--input: " + two + " has ") && Contains(" bytes for rank 1 on "));
  CHECK((files_of(dir.path() / "data") == first));
  const ProgramResult apart =
      prepare(2, {"--input", one, "--output", dir.at("data"), "--val-fraction", "0.2"},
              {"--input", one, "--output", dir.at("data")});
  CHECK(apart.exit_code == 2);
  CHECK_THAT(apart.err,
             Contains(" has another way to prepare than rank 0 on ") && Contains(": --output"));
  CHECK((files_of(dir.path() / "data") == first));
  const ProgramResult other =
      prepare(2, {"--input", two, "--tokenizer", "chars", "--output", dir.at("data")});
  CHECK(other.exit_code == 2);
  CHECK_THAT(other.err, Contains("holds data of the bytes tokenizer"));
  CHECK((files_of(dir.path() / "data") == first));
  REQUIRE(prepare(2, {"--input", two, "--output", dir.at("data")}).exit_code == 0);
  CHECK((files_of(dir.path() / "data").at("train.bin") != first.at("train.bin")));
}

TEST_CASE("what ranks cannot prepare is refused in a line", "[prepare]") {
  if (!have_mpirun()) return;
  const TextFolder dir;
  const std::string text = dir.put("a.txt", "text\n");
  const auto refused = [&](const Arguments& arguments) {
    const ProgramResult result = prepare(2, arguments);
    CHECK(result.exit_code == 2);
    return result.err;
  };
  CHECK_THAT(
      refused({"--input", text, "--output", dir.at("o"), "--shard-tokens", "3"}),
      Contains("--shard-tokens: 2 ranks write one file together; leave it out, or start one"));
  CHECK_THAT(refused({"--input", "-", "--output", dir.at("o")}),
             Contains("--input - can be read once, and each of 2 ranks reads the text; start one"));
  CHECK_FALSE(fs::exists(dir.path() / "o"));
}

}  // namespace sluice::test::prepare_ranks_test
