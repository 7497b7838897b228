#include "models/text/bpe/bpe_files.h"

#include <nlohmann/json.hpp>
#include <random>

#include "engine/io/file.h"
#include "models/text/byte_tokenizer.h"
#include "models/text/char_tokenizer.h"
#include "models/text/tokenizer.h"
#include "tests/models/text_support.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tokenizer_data.h"

namespace sluice::test::bpe_files_test {

using nlohmann::json;

namespace {

/// The contents of the files of small_bpe(), to be corrupted.
struct SmallBpe {
  json vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;

  SmallBpe() {
    const auto bpe = small_bpe();
    for (const auto& [name, id] : bpe.symbols)
      vocabulary[name] = id;
    for (const auto& [left, right, place] : bpe.merges)
      merges.emplace_back(left, right);
  }

  std::string merges_text() const {
    std::string text = "#version: 0.2\n";
    for (const auto& [left, right] : merges)
      text += left + " " + right + "\n";
    return text;
  }
};

/// Writes the pair of files and reads them.
BpeTables read_pair(const std::string& vocabulary, const std::string& merges) {
  const TemporaryFolder folder;
  return read_bpe_files(folder.write("vocab.json", vocabulary), folder.write("merges.txt", merges));
}
BpeTables read_pair(const SmallBpe& bpe) {
  return read_pair(bpe.vocabulary.dump(), bpe.merges_text());
}

/// The error for a small tokenizer after `spoil` has changed it.
template <class Spoil>
std::string spoilt(Spoil&& spoil) {
  SmallBpe bpe;
  spoil(bpe);
  return usage_error([&] { read_pair(bpe); });
}

std::string merges_error(const std::string& merges) {
  return usage_error([&] { read_pair(SmallBpe().vocabulary.dump(), merges); });
}
std::string vocabulary_error(const std::string& vocabulary) {
  return usage_error([&] { read_pair(vocabulary, SmallBpe().merges_text()); });
}

std::vector<std::int32_t> sample(const fs::path& folder) {
  return load_tokenizer(folder)->encode_with_special("abc ab, a<|endoftext|>\xFF\u00E9");
}

}  // namespace

TEST_CASE("The accepted spellings of the merges read alike", "[bpe_files]") {
  const auto vocabulary = SmallBpe().vocabulary.dump();
  for (const auto* merges :
       {"#version: 0.2\na b\nab c\n\u0120 a\n", "#version: 0.2\r\na b\r\nab c\r\n\u0120 a\r\n",
        "a b\nab c\n\u0120 a\n", "a b\nab c\n\u0120 a", "a b\nab c\n\u0120 a\n\n"}) {
    const auto tables = read_pair(vocabulary, merges);
    REQUIRE(tables.merges.size() == 3);
    CHECK(tables.merges.rank('a', 'b') == 0);
    CHECK(tables.merges.rank(256, 'c') == 1);
    CHECK(tables.merges.rank(' ', 'a') == 2);
    CHECK_FALSE(tables.merges.rank('b', 'a'));
    CHECK(tables.end_of_text == 259);
    CHECK(tables.symbols[257] == "abc");
    CHECK(tables.symbols[258] == " a");
    CHECK(tables.byte_symbol[0xFF] == 0xFF);
  }
}

TEST_CASE("Every description of a tokenizer loads as the same one", "[bpe_files]") {
  const SmallBpe bpe;
  const TemporaryFolder hf, openai, pairs, strings, saved;
  hf.write("vocab.json", bpe.vocabulary.dump());
  hf.write("merges.txt", bpe.merges_text());
  openai.write("encoder.json", bpe.vocabulary.dump());
  openai.write("vocab.bpe", bpe.merges_text());
  auto root = small_tokenizer_json();
  pairs.write("tokenizer.json", root.dump());
  root["model"]["merges"] = {"a b", "ab c", "\u0120 a"};
  root["model"]["vocab"].erase("<|endoftext|>");  // which is an added token, too
  strings.write("tokenizer.json", root.dump());
  load_tokenizer(hf.path())->save(saved.path() / "new" / "folder");

  const auto ids = sample(hf.path());
  CHECK(ids == std::vector<std::int32_t>{257, ' ', 256, ',', 258, 259, 0xFF, 0xC3, 0xA9});
  for (const auto& folder :
       {openai.path(), pairs.path(), strings.path(), saved.path() / "new" / "folder"}) {
    CAPTURE(folder.string());
    CHECK(load_tokenizer(folder)->kind() == "gpt2");
    CHECK(sample(folder) == ids);
    CHECK(load_tokenizer(folder)->content_hash() == load_tokenizer(hf.path())->content_hash());
  }
}

TEST_CASE("GPT-2's files are saved as they are published", "[bpe_files]") {
  const fs::path published = GENERATE(from_range(tokenizer_folders()));
  CAPTURE(published.string());
  const TemporaryFolder folder;
  load_tokenizer(published)->save(folder.path());
  const auto same = [&](const char* name, const char* openai) {
    const auto file = published / (fs::exists(published / name) ? name : openai);
    return read_text_file(folder.path() / name) == read_text_file(file);
  };
  CHECK(same("vocab.json", "encoder.json"));
  CHECK(same("merges.txt", "vocab.bpe"));
  const auto config = json::parse(read_text_file(folder.path() / "tokenizer_config.json"));
  CHECK(config["tokenizer_class"] == "GPT2Tokenizer");
  CHECK(config["eos_token"] == "<|endoftext|>");
}

TEST_CASE("Files beside a vocabulary that name another tokenizer are believed", "[bpe_files]") {
  const TemporaryFolder folder;
  load_tokenizer(tokenizer_folders().front())->save(folder.path());
  const auto refusal = [&] { return error_message([&] { load_tokenizer(folder.path()); }); };
  const auto of_class = [&](const char* name) {
    write_file(folder.path() / "tokenizer_config.json", json{{"tokenizer_class", name}}.dump());
  };
  CHECK(refusal() == "(no error)");
  of_class("GPT2TokenizerFast");
  CHECK(refusal() == "(no error)");
  of_class("Qwen2Tokenizer");
  CHECK_THAT(refusal(), Contains("tokenizer_config.json is not of a GPT-2 tokenizer") &&
                            Contains("Qwen2Tokenizer"));
  // The class for every tokenizer.json says nothing without one, and with one the file decides.
  of_class("PreTrainedTokenizerFast");
  CHECK_THAT(refusal(), Contains("PreTrainedTokenizerFast"));
  write_file(folder.path() / "tokenizer.json", R"({"model": {"type": "Unigram"}})");
  CHECK_THAT(refusal(), Contains("tokenizer.json is no tokenizer that this program reads"));
}

TEST_CASE("A vocabulary is refused for each of its faults", "[bpe_files]") {
  const auto id = [](const json& value) {
    return spoilt([&](SmallBpe& bpe) { bpe.vocabulary["ab"] = value; });
  };
  CHECK_THAT(id(260), Contains("vocab.json") && Contains("\"ab\"") && Contains("260"));
  CHECK_THAT(id(1e30), Contains("1e+30"));
  CHECK_THAT(id(std::uint64_t{1} << 63), Contains("9223372036854775808"));
  CHECK_THAT(id(-1), Contains("-1") && Contains("not a whole number"));
  CHECK_THAT(id(2.5), Contains("2.5"));
  CHECK_THAT(id("3"), Contains("not a whole number"));
  CHECK_THAT(id(nullptr), Contains("null"));
  CHECK_THAT(id(7), Contains("the id 7 to the symbol") && Contains("and to another one"));

  CHECK_THAT(spoilt([](SmallBpe& bpe) { bpe.vocabulary.erase("~"); }),
             Contains("259 symbols need the ids 0 to 258"));
  CHECK_THAT(spoilt([](SmallBpe& bpe) {
               bpe.vocabulary.erase("~");
               bpe.vocabulary["<~>"] = '~';
             }),
             Contains("no symbol for the byte 126, which is written \"~\""));
  CHECK_THAT(spoilt([](SmallBpe& bpe) { bpe.vocabulary["a b"] = 260; }),
             Contains("\"a b\"") && Contains("256 byte characters"));
  CHECK_THAT(spoilt([](SmallBpe& bpe) { bpe.vocabulary[""] = 260; }), Contains("\"\""));
  CHECK_THAT(spoilt([](SmallBpe& bpe) { bpe.vocabulary["\u4E2D"] = 260; }), Contains("\u4E2D"));

  CHECK_THAT(vocabulary_error("[]"), Contains("no object"));
  CHECK_THAT(vocabulary_error("{}"), Contains("no object"));
  CHECK_THAT(vocabulary_error("7"), Contains("no object"));
}

TEST_CASE("Merges are refused for each of their faults", "[bpe_files]") {
  CHECK_THAT(merges_error("a b\na\n"), Contains("merges.txt line 2 is \"a\""));
  CHECK_THAT(merges_error("a b c\n"), Contains("line 1 is \"a b c\""));
  CHECK_THAT(merges_error("a \n"), Contains("\"a \""));
  CHECK_THAT(merges_error(" a\n"), Contains("\" a\""));
  CHECK_THAT(merges_error("a  b\n"), Contains("\"a  b\""));
  CHECK_THAT(merges_error("#version: 0.2\na b\nab zz\n"),
             Contains("line 3 needs the symbol \"zz\""));
  CHECK_THAT(merges_error("qq b\n"), Contains("\"qq\""));
  CHECK_THAT(merges_error("a c\n"), Contains("needs the symbol \"ac\""));
  CHECK_THAT(merges_error("a b\nab c\na b\n"), Contains("line 3") && Contains("a second time"));
  CHECK_THAT(merges_error("a b\nab c\n"), Contains("\" a\", id 258") && Contains("cut short"));
  CHECK_THAT(merges_error(""), Contains("cut short"));
  CHECK_THAT(merges_error("\xFF\xFE b\n"), Contains("needs the symbol"));
}

TEST_CASE("JSON is read strictly", "[bpe_files]") {
  const auto whole = SmallBpe().vocabulary.dump();
  CHECK_THAT(vocabulary_error(whole.substr(0, whole.size() / 2)),
             Contains("vocab.json is not valid JSON"));
  CHECK_THAT(vocabulary_error(whole + "x"), Contains("not valid JSON"));
  CHECK_THAT(vocabulary_error(""), Contains("not valid JSON"));
  CHECK_THAT(vocabulary_error(R"({"a": 1, "b": 2, "a": 1})"),
             Contains("the key \"a\" occurs twice"));
  CHECK_THAT(vocabulary_error(R"({"a": 1e400})"), Contains("not valid JSON"));
  CHECK_THAT(vocabulary_error(R"({"\ud800": 1})"), Contains("not valid JSON"));
  CHECK_THAT(vocabulary_error("{\"\xFF\": 1}"), Contains("not valid JSON"));
  CHECK_THAT(vocabulary_error(std::string(100'000, '[')), Contains("nested more than"));
}

TEST_CASE("A file that cannot be read is named", "[bpe_files]") {
  const TemporaryFolder folder;
  const auto merges = folder.write("merges.txt", "");
  CHECK_THAT(usage_error([&] { read_bpe_files(folder.path() / "absent.json", merges); }),
             Contains("absent.json: No such file"));
  CHECK_THAT(usage_error([&] { read_bpe_files(folder.path(), merges); }),
             Contains(folder.path().string()));

  const auto huge = folder.write("huge.json", "");
  fs::resize_file(huge, 100'000'001);
  CHECK_THAT(usage_error([&] { read_bpe_files(huge, merges); }),
             Contains("huge.json has 100000001 bytes"));
}

TEST_CASE("A folder says which tokenizer it has", "[bpe_files]") {
  const TemporaryFolder folder;
  CHECK_FALSE(has_tokenizer(folder.path()));
  CHECK_FALSE(has_tokenizer(folder.path() / "absent"));
  folder.write("vocab.json", "{}");  // half of a pair is none
  CHECK_FALSE(has_tokenizer(folder.path()));
  CHECK_THAT(usage_error([&] { load_tokenizer(folder.path()); }),
             Contains(folder.path().string()) && Contains("chars.json") && Contains("bytes.json") &&
                 Contains("merges.txt") && Contains("vocab.bpe") && Contains("tokenizer.json"));

  CharTokenizer::from_text(std::string("b\0\u00E9a\xFF", 6)).save(folder.path());
  CHECK(has_tokenizer(folder.path()));
  const auto characters = load_tokenizer(folder.path());
  CHECK(characters->kind() == "chars");
  CHECK(characters->encode("ab\u00E9\xFF") == std::vector<std::int32_t>{1, 2, 3, 4});

  ByteTokenizer().save(folder.path());
  CHECK_THAT(usage_error([&] { load_tokenizer(folder.path()); }),
             Contains("chars.json") && Contains("bytes.json") && Contains("two tokenizers"));
  fs::remove(folder.path() / "chars.json");
  CHECK(load_tokenizer(folder.path())->kind() == "bytes");
}

TEST_CASE("Characters and bytes come with files for other programs", "[bpe_files]") {
  const TemporaryFolder folder;
  const auto written = [&](const char* name) {
    return json::parse(read_text_file(folder.path() / name));
  };
  CharTokenizer::from_text(std::string("b\0\n\u00E9a\xFF", 7)).save(folder.path());
  const json model = written("tokenizer.json").at("model");
  CHECK(model.at("type") == "WordLevel");
  CHECK(model.at("vocab") ==
        json{{"<0x00>", 0}, {"\n", 1}, {"a", 2}, {"b", 3}, {"\u00E9", 4}, {"<0xFF>", 5}});
  const json split = written("tokenizer.json").at("pre_tokenizer");
  CHECK(split.at("type") == "Split");
  CHECK(split.at("pattern") == json{{"Regex", "[\\s\\S]"}});
  CHECK(split.at("behavior") == "Isolated");
  CHECK(written("tokenizer_config.json").at("tokenizer_class") == "PreTrainedTokenizerFast");
  // They do not make the folder one of two tokenizers; a BPE's file does.
  CHECK(load_tokenizer(folder.path())->kind() == "chars");
  folder.write("tokenizer.json", small_tokenizer_json().dump());
  CHECK_THAT(usage_error([&] { load_tokenizer(folder.path()); }),
             Contains("chars.json") && Contains("tokenizer.json") && Contains("two tokenizers"));

  fs::remove(folder.path() / "chars.json");
  ByteTokenizer().save(folder.path());
  CHECK(load_tokenizer(folder.path())->kind() == "bytes");
  const json bytes = written("tokenizer.json").at("model");
  CHECK(bytes.at("type") == "BPE");
  CHECK(bytes.at("merges").empty());
  // Alone the file is a tokenizer without merges, of the same ids.
  fs::remove(folder.path() / "bytes.json");
  CHECK(load_tokenizer(folder.path())->kind() == "bpe");
  CHECK(load_tokenizer(folder.path())->encode("a\xFF") == std::vector<std::int32_t>{'a', 0xFF});
}

TEST_CASE("Malformed chars.json and bytes.json are refused", "[bpe_files]") {
  const TemporaryFolder folder;
  const auto chars = [&](std::string_view text) {
    return usage_error([&] { CharTokenizer::load(folder.write("chars.json", text)); });
  };
  CHECK_THAT(chars("[]"), Contains("no list"));
  CHECK_THAT(chars(R"({"characters": []})"), Contains("no list"));
  CHECK_THAT(chars(R"({"characters": ["a", "bc"]})"), Contains("entry 1"));
  CHECK_THAT(chars(R"({"characters": [""]})"), Contains("entry 0"));
  CHECK_THAT(chars(R"({"characters": [127]})"), Contains("entry 0"));
  CHECK_THAT(chars(R"({"characters": [256]})"), Contains("entry 0"));
  CHECK_THAT(chars(R"({"characters": [-1]})"), Contains("entry 0"));
  CHECK_THAT(chars(R"({"characters": [null]})"), Contains("entry 0"));
  CHECK_THAT(chars(R"({"characters": ["b", "a"]})"), Contains("\"a\"") && Contains("ascending"));
  CHECK_THAT(chars(R"({"characters": ["a", "a"]})"), Contains("ascending"));
  CHECK_THAT(usage_error([&] { ByteTokenizer::load(folder.write("bytes.json", "{}")); }),
             Contains("bytes.json does not describe"));
}

TEST_CASE("Damaged files end in an Error or in a tokenizer", "[bpe_files]") {
  const TemporaryFolder folder;
  const SmallBpe bpe;
  const std::vector<std::pair<std::string, std::string>> files = {
      {"vocab.json", bpe.vocabulary.dump()},
      {"merges.txt", bpe.merges_text()},
      {"tokenizer.json", small_tokenizer_json().dump()},
      {"chars.json", R"({"characters": ["a", "b", "\u00e9", 200, "\u4e2d"]})"}};
  int refused = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    std::mt19937 random(seed);
    const auto& [name, whole] = files[seed % files.size()];
    auto text = whole;
    for (int change = 0; change < 3; ++change) {
      const auto at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 3);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 20));
      }
    }
    for (const auto& [other, content] : files)
      fs::remove(folder.path() / other);
    folder.write(name, text);
    if (name == "vocab.json") folder.write("merges.txt", bpe.merges_text());
    if (name == "merges.txt") folder.write("vocab.json", bpe.vocabulary.dump());
    CAPTURE(seed);
    try {
      const auto tokenizer = load_tokenizer(folder.path());
      const std::string sample_text = "aab";
      CHECK(tokenizer->decode(tokenizer->encode(sample_text)) == sample_text);
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > 300);
}

}  // namespace sluice::test::bpe_files_test
