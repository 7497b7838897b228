#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <set>

#include "models/text/byte_tokenizer.h"
#include "tests/faults/small_disk.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/help_flags.h"
#include "tests/support/skip.h"

// Every flag that names something to write, and what it must not replace. The flags come from
// --help, so that a new one without a rule fails here.

namespace sluice::test::own_files_test {
namespace {

/// A command that writes what its last flag names.
struct Writer {
  std::string program, flags, flag;
  bool folder = false;
  bool marked = true;  ///< it knows its own files

  std::string name() const { return program + " " + flag; }
};

const std::string shape = "--vocab-size 64 --n-layer 2 --n-head 1 --n-embd 8 --context 16 ";
const std::string training =
    "--model model --data t.bin --steps 1 --batch-size 2 --threads 1 --sample-tokens 0 "
    "--val-every 0 ";

const std::vector<Writer>& writers() {
  static const std::vector<Writer> all{
      {"train_gpt2", training, "--output", true},
      {"train_gpt2", training + "--save never --output fresh ", "--trace"},
      {"train_gpt2", training + "--save never --output fresh ", "--rank-files", true},
      {"plan", shape, "--output", true},
      {"plan", shape, "--trace"},
      {"plan", shape, "--rank-files", true},
      {"plan", "--device cpu ", "--save-probe"},
      {"plan", shape + "--batch-size 4 --pp 2 ", "--schedule-svg"},
      {"plan", shape + "--batch-size 4 --pp 2 ", "--schedule-csv"},
      {"probe", "--model model --tokens t.bin ", "--dump"},
      {"prepare_data", "--input text.txt ", "--output", true},
      {"prepare_data", "--input text.txt ", "--encode-only", false, false},
      {"convert", "--input model ", "--output", true},
      {"train_mlp", "--steps 1 --threads 1 ", "--output", true},
      {"bench_collectives", "--max-bytes 4 --rep 0 --collective reduce ", "--json"},
      {"bench_step", "", "--json"},
      {"bench_decode", "", "--json"},
      {"bench_token_reads", "--data t.bin ", "--json"},
      {"bench_kernels", "", "--json"},
      {"bench_kernels", "", "--csv"}};
  return all;
}

/// Leaves out flags that write nothing here: plan prints those of train_gpt2 again. The other
/// benchmarks take minutes, and write by the same function as bench_collectives.
bool is_quick(const Writer& writer) {
  if (writer.flag == "--rank-files") return false;  // of several ranks
  const bool planned = writer.program == "plan" && !writer.flag.starts_with("--s");
  return !planned && (!writer.program.starts_with("bench") || writer.program.ends_with("tives"));
}

bool is_built(const Writer& writer) {
  return fs::exists(fs::path(SLUICE_BIN_DIR) / writer.program);
}

/// A user's folder.
struct Desk : TempDir {
  Desk() {
    DecoderConfig config = small_config();
    config.vocab_size = 256;
    for (const char* const name : {"model", "theirs"}) {
      write_model(at(name), config);
      ByteTokenizer().save(at(name));
    }
    write_tokens(at("t.bin"), 200, 64);
    write_file(at("text.txt"), std::string(3000, 'a') + "\n");
    write_file(at("keep.st"), "what I wrote yesterday\n");
    fs::create_directory(at("folder"));
    write_file(at("folder/notes"), "mine\n");
    fs::create_directories(at("data"));
    write_file(at("data/train.bin"), "ab");
    fs::create_symlink("keep.st", at("link"));
    fs::create_directory_symlink("theirs", at("shortcut"));
  }

  fs::path at(const std::string& name) const { return path() / name; }
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(path()))
      all[entry.path().string()] = entry.is_regular_file() ? read_file(entry.path()) : "";
    return all;
  }
  ProgramResult run(const Writer& writer, const std::string& value) const {
    Arguments all = words(writer.flags);
    all.insert(all.end(), {writer.flag, value});
    return run_program(writer.program, all, {}, path());
  }
  void refused(const Writer& writer, const std::string& value) const {
    INFO(writer.name() << " " << value);
    const auto before = files();
    const ProgramResult result = run(writer, value);
    CHECK(result.exit_code == 2);
    CHECK(count_lines(result.err) == 1);
    CHECK_THAT(result.err, StartsWith(writer.program + ": error: " + writer.flag));
    CHECK_THAT(result.err, Contains(value) && Contains("give a"));
    CHECK((files() == before));
  }
  void written(const Writer& writer, const std::string& value) const {
    INFO(writer.name() << " " << value);
    const ProgramResult result = run(writer, value);
    CHECK(result.err == "");
    CHECK(result.exit_code == 0);
    fs::remove_all(at("fresh"));
  }
};

/// Says that a flag's name or help speaks of writing.
bool speaks_of_writing(const HelpFlag& flag) {
  std::string text = flag.name + " " + flag.help + " ";
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* const word :
       {"-output ", "-dump ", "-save-", "-svg ", "-csv ", "-trace ", "-log ", "-json ", "-out ",
        "-export ", "-write ", "-encode-", "-files ", "write", "folder for", "folder of the run"})
    if (text.find(word) != text.npos) return true;
  return false;
}

}  // namespace

TEST_CASE("every flag that names something to write is declared as one, tested and told of",
          "[outputs]") {
  // What speaks of writing and names nothing to write, or nothing that could be replaced.
  const std::map<std::string, std::string> others{{"--json", "prints"},
                                                  {"--save-every", "how often"},
                                                  {"--state-home", "an unnamed file in a folder"},
                                                  {"--save", "how"},
                                                  {"--shard-tokens", "how many"},
                                                  {"--pairs", "how"},
                                                  {"--probe", "reads what --save-probe wrote"},
                                                  {"--config", "reads"},
                                                  {"--compare", "reads"},
                                                  {"--data", "reads what prepare_data writes"}};
  const std::string page =
      read_file(fs::path(SLUICE_SOURCE_DIR) / "docs/reference/file-formats.md");
  std::set<std::string> written;
  for (const std::string& program : all_programs())
    for (const HelpFlag& flag : flags_of(program)) {
      INFO(program << " " << flag.name << ": " << flag.help);
      if (flag.writes()) {
        written.insert(program + " " + flag.name);
        CHECK(speaks_of_writing(flag));  // else such a flag would not be missed here
        CHECK_THAT(page, Contains("`" + program + " " + flag.name + "`"));
      } else if (!flag.type.empty() && speaks_of_writing(flag)) {
        CHECK(others.contains(flag.name));
      }
    }
  std::set<std::string> tested;
  for (const Writer& writer : writers())
    if (is_built(writer)) tested.insert(writer.name());
  CHECK(tested == written);
}

TEST_CASE("no program replaces what it did not write", "[outputs]") {
  const Desk desk;
  for (const Writer& writer : writers()) {
    if (!is_built(writer)) continue;
    if (writer.folder) {
      desk.refused(writer, "keep.st");
      desk.refused(writer, "link");
      if (writer.flag == "--rank-files") continue;  // earlier records are set aside
      desk.refused(writer, "theirs");
      desk.refused(writer, "shortcut");
      if (writer.program != "convert") desk.refused(writer, "data");
      if (writer.program.starts_with("train")) desk.refused(writer, "folder");
    } else {
      for (const char* const file :
           {"keep.st", "link", "theirs/model.safetensors", "theirs/config.json",
            "shortcut/tokenizer.json", "data/train.bin", "folder"})
        desk.refused(writer, file);
    }
  }
}

TEST_CASE("what a program wrote it writes again, through a link too", "[outputs]") {
  const Desk desk;
  fs::create_directory(desk.at("elsewhere"));
  for (const Writer& writer : writers()) {
    if (!is_built(writer) || !is_quick(writer)) continue;
    INFO(writer.name());
    const std::string name = writer.program + writer.flag;
    desk.written(writer, name);
    if (!writer.marked) {
      desk.refused(writer, name);
    } else if (writer.program != "train_mlp") {  // its log is there already
      desk.written(writer, name);
      const fs::path link = desk.at(name + ".link"), target = desk.at("elsewhere") / name;
      fs::rename(desk.at(name), target);
      fs::create_symlink(target, link);
      desk.written(writer, link.filename());
      CHECK(fs::is_symlink(link));
      CHECK(fs::exists(target));
    }
    if (!writer.folder) {
      write_file(desk.at("empty"), "");
      desk.written(writer, "empty");
      CHECK(fs::file_size(desk.at("empty")) > 0);
      fs::remove(desk.at("empty"));
    }
  }
  // The program keeps the user's own files in the folder.
  write_file(desk.at("convert--output.link/README.md"), "mine\n");
  desk.written(writers()[12], "convert--output.link");
  CHECK(read_file(desk.at("convert--output.link/README.md")) == "mine\n");
}

TEST_CASE("a trained model is not replaced by a converted one", "[outputs]") {
  const Desk desk;
  desk.written(writers()[0], "run");
  desk.refused(writers()[12], "run/model");
}

TEST_CASE("devices are written to and stay devices", "[outputs]") {
  const Desk desk;
  for (const Writer& writer : writers()) {
    if (!is_built(writer) || !is_quick(writer) || writer.folder) continue;
    INFO(writer.name());
    const ProgramResult full = desk.run(writer, "/dev/full");
    CHECK(full.exit_code == 1);
    CHECK(count_lines(full.err) == 1);
    CHECK_THAT(full.err, Contains("/dev/full: No space left on device"));
    fs::remove_all(desk.at("fresh"));
    fs::remove(desk.at("null"));
    fs::create_symlink("/dev/null", desk.at("null"));
    desk.written(writer, "null");
    CHECK(fs::is_symlink(desk.at("null")));
    for (const char* const device : {"/dev/full", "/dev/null"})
      REQUIRE(fs::is_character_file(device));
  }
}

TEST_CASE("on a full disk a program ends with one sentence, and an older file stays", "[outputs]") {
  const Desk desk;
  const SmallDisk disk(desk.at("disk"), "4k");
  if (!disk.mounted()) return skip("this process may not mount a disk");
  for (const Writer& writer : writers()) {
    if (!is_built(writer) || !is_quick(writer)) continue;
    INFO(writer.name());
    // With pages enough for the folder and the old file, not for another one.
    disk.change(0, "1m");
    const fs::path place = desk.at("disk/there");
    desk.written(writer, place.string());
    if (!writer.marked) fs::remove(place);
    const std::string old = fs::is_regular_file(place) ? read_file(place) : "";
    std::ofstream filler(desk.at("disk/filler"), std::ios::binary);
    while (filler.write(std::string(1024, 'x').data(), 1024).flush()) {
    }
    const ProgramResult result = desk.run(writer, place.string());
    fs::remove_all(desk.at("fresh"));
    if (writer.flag != "--trace" && writer.name() != "train_mlp --output" &&
        writer.name() != "train_gpt2 --output") {
      CHECK(result.exit_code == 1);
      CHECK_THAT(result.err, Contains("No space left on device"));
      CHECK(count_lines(result.err) == 1);
    }
    if (writer.marked && !writer.folder && writer.flag != "--trace") CHECK(read_file(place) == old);
    for (const auto& entry : fs::directory_iterator(desk.at("disk")))
      CHECK((entry.path() == place || entry.path().filename() == "filler"));
    for (const auto& entry : fs::directory_iterator(desk.at("disk")))
      fs::remove_all(entry.path());
  }
}

TEST_CASE("scripts that write have the same door", "[outputs]") {
  if (std::system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' > /dev/null 2>&1"))
    return skip("no python3");
  const fs::path root = SLUICE_SOURCE_DIR;
  int writing = 0;
  for (const char* const folder : {"scripts", "bench/peers"})
    for (const auto& entry : fs::directory_iterator(root / folder)) {
      const std::string text = entry.is_regular_file() ? read_file(entry.path()) : "";
      bool writes = false;
      for (const char* const flag : {"\"--output\"", "\"--json\"", "\"--csv\"", "\"--svg\""})
        writes = writes || text.find(flag + std::string(",")) != text.npos;
      // What ends in these names is the event files' own mark.
      if (!text.starts_with("#!/usr/bin/env python3") || !writes ||
          entry.path().filename() == "to_tensorboard" || text.find("argparse") == text.npos)
        continue;
      INFO(entry.path());
      ++writing;
      CHECK_THAT(text, Contains("require_own(\"--"));
      CHECK_THAT(text, !Contains("savefig(") && !Contains("write_text(") && !Contains("\"w\""));
    }
  CHECK(writing >= 12);

  const Desk desk;
  write_file(desk.at("log.jsonl"),
             R"({"event":"train","step":1,"loss":2.5,"lr":0.1,"tokens_per_second":9})"
             "\n");
  for (const char* const name : {"theirs.png", "theirs.json", "theirs.svg"})
    write_file(desk.at(name), "{\"mine\": true}\n");
  const auto refused = [&](const std::string& script, const std::string& flags) {
    INFO(script << " " << flags);
    const auto before = desk.files();
    const ProgramResult result =
        run_program("/usr/bin/env", words("python3 -B " + (root / script).string() + " " + flags),
                    {}, desk.path());
    CHECK(result.exit_code == 2);
    CHECK(count_lines(result.err) == 1);
    CHECK_THAT(result.err, Contains(": error: --") && Contains("give another name"));
    CHECK((desk.files() == before));
  };
  for (const std::string name : {"theirs", "folder"}) {
    const bool folder = name == "folder";
    const std::string json = name + (folder ? "" : ".json"), svg = name + (folder ? "" : ".svg");
    refused("scripts/bench_scaling", "--json " + json);
    refused("scripts/compare_optimizers", "--data text.txt --runs runs --json " + json);
    refused("scripts/plot_trace.py", "trace --output " + svg);
    refused("bench/peers/compare_kernels.py", "a b --json " + json);
    refused("bench/peers/compare.py", "--ours {json} --peer {json} --json " + json);
    if (folder) continue;
    refused("scripts/plot_run.py", "log.jsonl --output theirs.png");
    refused("scripts/plot_scaling.py", "a.json --output theirs.png");
    refused("scripts/plot_tensor_parallel.py", "log.jsonl log.jsonl --output theirs.svg");
    refused("scripts/plot_memory.py", "--output theirs");
  }

  const auto python = [&](const std::string& code) {
    return run_program("/usr/bin/env",
                       {"python3", "-B", "-c",
                        "import sys; sys.path.insert(0, '" + (root / "scripts").string() +
                            "'); sys.argv[0] = 'a_script'; from own_files import *\n" + code},
                       {}, desk.path());
  };
  const std::string write =
      "require_own('--json', 'new', FIGURES); write('new', '{\"program\": \"x\"}')";
  for (int times = 0; times < 2; ++times)
    CHECK(python(write).exit_code == 0);
  fs::rename(desk.at("new"), desk.at("target"));
  fs::create_symlink("target", desk.at("new"));
  CHECK(python(write).exit_code == 0);
  CHECK(fs::is_symlink(desk.at("new")));
  const ProgramResult full =
      python("require_own('--json', '/dev/full', FIGURES); write('/dev/full', 'x')");
  CHECK(full.exit_code == 1);
  CHECK(full.err == "a_script: error: cannot write /dev/full: No space left on device\n");
  CHECK(python("require_own('--json', '/dev/null', FIGURES); write('/dev/null', 'x')").exit_code ==
        0);
  REQUIRE(fs::is_character_file("/dev/null"));
}

}  // namespace sluice::test::own_files_test
