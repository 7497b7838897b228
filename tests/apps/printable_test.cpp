#include "engine/io/printable.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "models/text/byte_tokenizer.h"
#include "parallel/ring_file.h"
#include "tests/engine/safetensors_files.h"
#include "tests/support/fixture.h"
#include "tests/support/pseudo_terminal.h"
#include "tests/support/temp_dir.h"

// Text of strangers on its way to a terminal. Every message that can hold some is made to hold
// control characters of both kinds, a change of direction and a character that nobody sees.

namespace sluice::test {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::json;

/// An order to the terminal (OSC 0), a C1 control, right-to-left override, zero-width space.
const std::string hostile =
    "a\x1b]0;owned\x07"
    "b\xC2\x9B"
    "2J\xE2\x80\xAE"
    "c\xE2\x80\x8B"
    "d";
const std::vector<std::string> forbidden{"\x1b",     "\x07",         "\x7f",        "\r",
                                         "\xC2\x9B", "\xE2\x80\xAE", "\xE2\x80\x8B"};

bool safe(const std::string& text) {
  return std::ranges::none_of(
      forbidden, [&](const std::string& bytes) { return text.find(bytes) != std::string::npos; });
}

/// A tiny model with a tokenizer, a text, and files with foreign words.
struct Folder : TempDir {
  Folder() {
    GPT2Config config = small_config();
    config.vocab_size = 256;
    write_model(path() / "gpt2", config);
    ByteTokenizer().save(path() / "gpt2");
    std::string text;
    while (text.size() < 2000)
      text += "the quick brown fox\n";
    write_file(path() / "text.txt", text);
  }
  std::string copy(const std::string& name) const {
    std::filesystem::copy(path() / "gpt2", path() / name);
    return name;
  }
  /// What the program prints, whether it succeeds or not, and that it names something foreign.
  void tells_safely(const std::string& program, const Arguments& arguments) const {
    const ProgramResult result = run_program(program, arguments, "", path());
    INFO(program << ": " << printable(result.out + result.err));
    CHECK(safe(result.out));
    CHECK(safe(result.err));
    CHECK_THAT(result.out + result.err, Contains("owned"));
  }
};

}  // namespace

TEST_CASE("what a terminal would obey or not show is escaped, and nothing else", "[row16]") {
  for (const char* same : {"", "plain", "two\nlines\tand a tab", "é ß 中文 😀 ‾", "\u00A0"})
    CHECK(printable(same) == same);
  CHECK(printable("\x1b[2J\x07\r\x7f") == "\\x1b[2J\\x07\\x0d\\x7f");
  CHECK(printable(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\xC2\x80|\xC2\x9B|\xC2\x9F") == "\\u0080|\\u009b|\\u009f");
  CHECK(printable("\x9B"
                  "2J\xFF\xE2\x80") == "\\x9b2J\\xff\\xe2\\x80");           // no UTF-8
  CHECK(printable("\xC0\x9B\xED\xA0\x80") == "\\xc0\\x9b\\xed\\xa0\\x80");  // overlong, surrogate
  for (const char32_t c :
       {0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x202A, 0x202B, 0x202C, 0x202D, 0x202E, 0x2066,
        0x2067, 0x2068, 0x2069, 0x061C, 0x2060, 0xFEFF, 0x2028, 0x2029}) {
    std::string utf8;
    if (c >= 0x800) utf8 += static_cast<char>(0xE0 | c >> 12);
    utf8 += static_cast<char>(c >= 0x800 ? 0x80 | (c >> 6 & 0x3F) : 0xC0 | c >> 6);
    utf8 += static_cast<char>(0x80 | (c & 0x3F));
    char expected[8];
    std::snprintf(expected, sizeof expected, "\\u%04x", static_cast<unsigned>(c));
    CHECK(printable("x" + utf8 + "y") == std::string("x") + expected + "y");
  }
  CHECK(printable_line("a\nb\tc") == "a\\nb\\tc");
  CHECK(safe(printable(hostile)));
}

TEST_CASE("no foreign text reaches a terminal raw in any message", "[row16]") {
  const Folder in;
  const Arguments tiny =
      words("--threads 1 --batch-size 2 --steps 1 --no-save --val-every 0 --sample-tokens 0");
  const auto train = [&](const Arguments& more) {
    Arguments all = tiny;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  SECTION("a flag, its value and an argument") {
    in.tells_safely("train_gpt2", {"--" + hostile});
    in.tells_safely("train_gpt2", {"--lr", hostile});
    in.tells_safely("train_gpt2", {hostile});
    in.tells_safely("plan", {"--model", "gpt2", "--gpu-memory", hostile});
  }
  SECTION("the name of a file that is not there, and of one that is") {
    in.tells_safely("train_gpt2", {"--data", hostile + ".txt"});
    in.tells_safely("evaluate", {"--model", hostile, "--data", "text.txt"});
    in.tells_safely("post_mortem", {hostile});
    write_file(in.path() / (hostile + ".txt"), read_file(in.path() / "text.txt"));
    in.tells_safely("train_gpt2", train({"--model", "gpt2/", "--data", hostile + ".txt"}));
    in.tells_safely("prepare_data", {"--input", "text.txt", "--output", hostile});
    in.tells_safely("prepare_data", {"--input", "text.txt", "--encode-only", hostile + ".bin"});
    in.tells_safely("convert", {"--input", "gpt2", "--output", hostile + "2"});
  }
  SECTION("a key of a file of options") {
    write_file(in.path() / "c.toml", hostile + "=1\n");
    in.tells_safely("train_gpt2", {"--config", "c.toml"});
    write_file(in.path() / "d.toml", "[" + hostile + "]\nsteps=1\n");
    in.tells_safely("train_gpt2", {"--config", "d.toml"});
    write_file(in.path() / "e.toml", "lr=" + hostile + "\n");
    in.tells_safely("train_gpt2", {"--config", "e.toml"});
  }
  SECTION("a device profile and its name") {
    in.tells_safely("plan", {"--model", "gpt2", "--device-profile", hostile});
    run_program("plan", {"--model", "gpt2/", "--save-probe", "p.json", "--threads", "1"}, "",
                in.path());
    Json probe = Json::parse(read_file(in.path() / "p.json"));
    probe["name"] = hostile;
    write_file(in.path() / "p.json", probe.dump());
    in.tells_safely("plan", {"--model", "gpt2/", "--probe", "p.json"});
    const ProgramResult json =
        run_program("plan", {"--model", "gpt2/", "--probe", "p.json", "--json"}, "", in.path());
    INFO(json.err);
    CHECK(safe(json.out));
    CHECK(Json::parse(json.out).at("device") == hostile);
  }
  SECTION("a field of a model's configuration") {
    const std::string model = in.copy("fields") + "/";
    const Json good = Json::parse(read_file(in.path() / "gpt2/config.json"));
    for (const char* field : {"activation_function", "model_type", "n_embd"}) {
      Json config = good;
      config[field] = hostile;
      write_file(in.path() / "fields/config.json", config.dump());
      in.tells_safely("evaluate", {"--model", model, "--data", "text.txt"});
    }
    write_file(in.path() / "fields/config.json", "{\"" + hostile + "\":1,}");
    CHECK(
        safe(run_program("evaluate", {"--model", model, "--data", "text.txt"}, "", in.path()).err));
  }
  SECTION("a tensor's name and a shard's") {
    in.copy("tensors");
    const std::string name = Json(hostile).dump();
    write_file(
        in.path() / "tensors/model.safetensors",
        file_of("{" + entry(name.substr(1, name.size() - 2), "F32", "[3]", "[0,8]") + "}", 8));
    in.tells_safely("evaluate", {"--model", "tensors", "--data", "text.txt"});
    std::filesystem::remove(in.path() / "tensors/model.safetensors");
    write_file(in.path() / "tensors/model.safetensors.index.json",
               Json{{"weight_map", {{"wte.weight", hostile + ".safetensors"}}}}.dump());
    in.tells_safely("evaluate", {"--model", "tensors", "--data", "text.txt"});
  }
  SECTION("a record of a rank") {
    std::filesystem::create_directory(in.path() / "ranks");
    RingFile ring(in.path() / "ranks", 0, 2);
    ring.note(hostile);
    ring.fail("cannot read " + hostile);
    in.tells_safely("post_mortem", {"--all", "ranks"});
  }
}

TEST_CASE("generated text is safe on a terminal and exact elsewhere", "[row16]") {
  const Folder in;
  const std::string model = (in.path() / "gpt2").string();
  const Arguments flags{"--model", model,           "--prompt", hostile + "\nx\ty", "--max-tokens",
                        "40",      "--temperature", "5",        "--threads",        "1"};
  const ProgramResult piped = run_program("generate", flags);
  INFO(piped.err);
  REQUIRE(piped.exit_code == 0);
  CHECK(piped.out.starts_with(hostile + "\nx\ty"));
  OnTerminal run("generate", flags, 80);
  std::string drawn = run.finish();
  CHECK(run.exit_code() == 0);
  std::erase(drawn, '\r');  // the terminal's own
  CHECK(safe(drawn));
  CHECK(drawn == printable(piped.out));
}

TEST_CASE("samples of a training are safe on a terminal and exact elsewhere", "[row16]") {
  const Folder in;
  Arguments flags = words(
      "--threads 1 --batch-size 2 --steps 1 --no-save --val-every 0 --sample-tokens 20 --device "
      "cpu");
  flags.insert(flags.end(), {"--model", (in.path() / "gpt2").string() + "/", "--data",
                             (in.path() / "text.txt").string(), "--prompt", hostile, "--output",
                             (in.path() / "one").string()});
  const std::string piped = run_well("train_gpt2", flags);
  CHECK_THAT(piped, Contains("---\n" + hostile));
  flags.back() = (in.path() / "two").string();
  OnTerminal run("train_gpt2", flags, 80, {"TERM=dumb"});
  std::string drawn = run.finish();
  CHECK(run.exit_code() == 0);
  std::erase(drawn, '\r');
  CHECK(safe(drawn));
  CHECK_THAT(drawn, Contains("---\n" + printable(hostile)));
}

}  // namespace sluice::test
