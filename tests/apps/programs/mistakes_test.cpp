#include <algorithm>
#include <future>
#include <map>
#include <set>
#include <sstream>

#include "kernels/base/runtime.h"
#include "models/text/byte_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// docs/reference/mistakes.md tells what each program says to mistakes that users make. Every row of
// its tables is run here, in a folder with the files that the page names.

namespace sluice::test::mistakes_test {
namespace {

struct Row {
  std::string mistake, command, message;
  int code = 0;
};

std::string without_ticks(const std::string& cell) {
  REQUIRE(cell.size() > 2);
  CHECK(cell.front() == '`');
  CHECK(cell.back() == '`');
  std::string text = cell.substr(1, cell.size() - 2);
  for (std::size_t at = 0; (at = text.find("\\|", at)) != std::string::npos; ++at)
    text.erase(at, 1);
  return text;
}

/// Cells of "| a | b |", where "\|" is a part of a cell.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::size_t from = 2;
  for (std::size_t at = 2; at < line.size(); ++at)
    if (line[at] == '|' && line[at - 1] == ' ') {
      cells.push_back(line.substr(from, at - from - 1));
      from = at + 2;
    }
  return cells;
}

std::vector<Row> read_rows() {
  std::istringstream page(read_file(fs::path(SLUICE_SOURCE_DIR) / "docs/reference/mistakes.md"));
  std::vector<Row> rows;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    // Skips all tables but those of mistakes.
    if (line.starts_with("#")) inside = line.starts_with("## ");
    if (!inside || !line.starts_with("| ") || line.starts_with("| mistake")) continue;
    INFO(line);
    const auto cells = cells_of(line);
    REQUIRE(cells.size() == 4);
    rows.push_back(
        {cells[0], without_ticks(cells[1]), without_ticks(cells[2]), std::stoi(cells[3])});
  }
  return rows;
}

/// The words of a command, of which some stand in double quotes.
Arguments split(const std::string& command) {
  Arguments all{""};
  bool quoted = false;
  for (const char c : command) {
    if (c == '"')
      quoted = !quoted;
    else if (c == ' ' && !quoted)
      all.emplace_back();
    else
      all.back() += c;
  }
  return all;
}

/// Returns true if the text matches the pattern, in which "..." stands for anything.
bool matches(const std::string& text, const std::string& pattern) {
  std::size_t at = 0;
  for (std::size_t from = 0; from <= pattern.size();) {
    const std::size_t end = std::min(pattern.find("...", from), pattern.size());
    const std::string piece = pattern.substr(from, end - from);
    const bool last = end == pattern.size();
    const std::size_t found =
        last && from > 0 && text.size() >= piece.size() && text.ends_with(piece)
            ? text.size() - piece.size()
            : text.find(piece, at);
    if (found == std::string::npos || found < at || (from == 0 && found != 0)) return false;
    at = found + piece.size();
    if (last) return at == text.size();
    from = end + 3;
  }
  return false;
}

/// The files that docs/reference/mistakes.md names.
struct Folder : TempDir {
  Folder() {
    const fs::path& in = path();
    DecoderConfig config = small_config();
    config.vocab_size = 256;
    config.n_positions = 64;
    write_model(in / "gpt2", config);
    ByteTokenizer().save(in / "gpt2");
    for (const char* name : {"no-config", "no-weights", "no-tokenizer", "truncated", "pointer",
                             "page", "cut-config", "bloom"})
      fs::copy(in / "gpt2", in / name, fs::copy_options::recursive);
    fs::remove(in / "no-config/config.json");
    fs::remove(in / "no-weights/model.safetensors");
    for (const char* file : {"bytes.json", "tokenizer.json", "tokenizer_config.json"})
      fs::remove(in / "no-tokenizer" / file);
    const std::string weights = read_file(in / "gpt2/model.safetensors");
    write_file(in / "truncated/model.safetensors", weights.substr(0, weights.size() / 2));
    write_file(in / "pointer/model.safetensors",
               "version https://git-lfs.github.com/spec/v1\noid sha256:248dfc39\nsize 548105171\n");
    write_file(in / "page/model.safetensors",
               "<!doctype html>\n<html>\n<head>\n</head>\n</html>\n");
    write_file(in / "cut-config/config.json", read_file(in / "gpt2/config.json").substr(0, 40));
    write_file(in / "bloom/config.json", R"({"model_type": "bloom", "n_embd": 64})");
    for (const char* name : {"large", "gptq", "unknown"}) {
      fs::copy(in / "gpt2", in / name, fs::copy_options::recursive);
      Weights weights_of_all = weights_of(*open_model(in / "gpt2", make_cpu_device()).space);
      if (name == std::string("large")) weights_of_all.at("ln_f.weight").second[3] = 70000;
      if (name == std::string("unknown"))
        weights_of_all["transformer.h.0.attn.extra"] = {Shape{2}, {1, 2}};
      write_weights(in / name / "model.safetensors", weights_of_all);
    }
    std::string config_of_gptq = read_file(in / "gpt2/config.json");
    config_of_gptq.insert(1, R"("quantization_config": {"quant_method": "gptq", "bits": 4},)");
    write_file(in / "gptq/config.json", config_of_gptq);

    std::string text;
    for (int line = 0; line < 500; ++line)
      text += "To be, or not to be, that is the question of line " + std::to_string(line) + ".\n";
    write_file(in / "text.txt", text);
    write_file(in / "short.txt", "too short");
    write_file(in / "empty.txt", "");
    write_file(in / "latin1.txt", "\xC9t\xE9.\n");
    write_tokens(in / "tokens.bin", 3000, 256);
    write_tokens(in / "high.bin", 3000, 512);
    write_file(in / "odd.bin", std::string(201, 'a'));
    write_file(in / "file", "x");
    fs::create_directory(in / "folder");
    fs::create_directories(in / "unsaved/checkpoints");
    write_file(in / "unsaved/run.lock", "");
    write_file(in / "wrong.toml", "learning-rate=1e-3\n");
    write_file(in / "cut.toml", "data=[text.txt\n");
    fs::create_directory(in / "mlp");
    write_file(in / "mlp/run.lock", "");
    write_file(in / "mlp/log.jsonl", "{}\n");
    for (const char* kind : {"bytes", "chars"})
      run_here("prepare_data", std::string("--input text.txt --tokenizer ") + kind + " --output " +
                                   (kind == std::string("bytes") ? "data" : kind));
    run_here("train_gpt2",
             "--model gpt2/ --data text.txt --batch-size 2 --steps 2 --threads 1 --val-every 0 "
             "--sample-tokens 0 --output run");
    run_here("train_gpt2",
             "--model gpt2/ --data text.txt --batch-size 2 --steps 1 --threads 1 --val-every 0 "
             "--sample-tokens 0 --lora-rank 1 --output adapted");
    for (const char* name : {"lora", "dora", "head"})
      fs::copy(in / "adapted/model", in / name, fs::copy_options::recursive);
    std::string adapter = read_file(in / "lora/adapter_config.json");
    write_file(in / "dora/adapter_config.json", adapter.insert(1, "\"use_dora\": true,"));
    write_weights(
        in / "head/adapter_model.safetensors",
        {{"base_model.model.lm_head.lora_A.weight", {Shape{1, 16}, std::vector<double>(16)}}});
    fs::create_directory(in / "tmp");
    write_file(in / "hosts", "# two of them\nlocalhost slots=2\nnode1.invalid slots=2\n");
  }

  void run_here(const std::string& program, const std::string& flags) const {
    const ProgramResult made = run_program(program, words(flags), "", path());
    INFO(made.err);
    REQUIRE(made.exit_code == 0);
  }

  std::set<std::string> entries() const {
    std::set<std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(path()))
      all.insert(entry.path().lexically_relative(path()).string());
    return all;
  }
};

/// Takes the variables off the front of a command, as in SLURM_PROCID=0 train_gpt2, which stand for
/// a launcher.
Arguments take_variables(Arguments& command) {
  const auto first = std::ranges::find_if(
      command, [](const std::string& word) { return word.find('=') == std::string::npos; });
  Arguments variables(command.begin(), first);
  command.erase(command.begin(), first);
  return variables;
}

/// Returns the last line on stderr.
std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) last = line;
  return last;
}

bool is_mpirun(const Row& row) {
  return row.command.starts_with("mpirun ");
}

bool is_launched(const Row& row) {
  return row.command.starts_with("scripts/launch ") || is_mpirun(row);
}

/// Returns whether a line of mpirun's output, or the last line of another program's, is as told.
bool says(const Row& row, const std::string& text) {
  if (!is_mpirun(row)) return matches(last_line(text), row.message);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (matches(line, row.message)) return true;
  return false;
}

}  // namespace

TEST_CASE("the patterns of docs/reference/mistakes.md match what they should alone", "[mistakes]") {
  CHECK(matches("a: b", "a: b"));
  CHECK_FALSE(matches("a: b", "a: "));
  CHECK_FALSE(matches("a: b", ": b"));
  CHECK(matches("a: 17 bytes too many", "a: ... bytes too many"));
  CHECK(matches("a: 17", "a: ..."));
  CHECK(matches("/x/a is a", "...a"));
  CHECK_FALSE(matches("a: 17 bytes", "a: ... bits"));
  CHECK_FALSE(matches("a: 17 bytes.", "a: ... bytes"));
}

TEST_CASE(
    "every mistake in docs/reference/mistakes.md gets its message and exit code, and writes "
    "nothing",
    "[mistakes]") {
  const auto rows = read_rows();
  CHECK(rows.size() >= 60);
  std::set<std::string> programs;
  // The mpirun of Open MPI 5.0.7 crashes on two programs with a colon between them.
  const bool one_program_alone =
      !std::string(SLUICE_MPIRUN).empty() &&
      RunningProgram(SLUICE_MPIRUN, {"--version"}).finish().out.find(" 5.0.7") != std::string::npos;
  const Folder in;
  const auto before = in.entries();
  const auto run = [&](const Row& row) {
    Arguments command = split(row.command);
    const Arguments variables = take_variables(command);
    const std::string program = command.front();
    // Jobs that begin at the same time would make the same folder for mpirun.
    const TempDir temporary;
    // Open MPI 5 leaves a folder of its own where a program that has begun MPI is refused.
    const bool by_mpi = is_launched(row) || !variables.empty();
    Arguments words{"TMPDIR=" + (by_mpi ? temporary.path() : in.path() / "tmp").string()};
    words.insert(words.end(), variables.begin(), variables.end());
    if (is_mpirun(row)) {
      words.insert(words.end(), {SLUICE_MPIRUN, "--allow-run-as-root", "--oversubscribe"});
      for (std::string& word : command)
        if (const fs::path own = fs::path(SLUICE_BIN_DIR) / word; fs::is_regular_file(own))
          word = own.string();
    } else if (is_launched(row)) {
      words.insert(words.end(), {SLUICE_SOURCE_DIR "/scripts/launch", "--bin", SLUICE_BIN_DIR});
    } else {
      words.push_back((fs::path(SLUICE_BIN_DIR) / program).string());
    }
    words.insert(words.end(), command.begin() + 1, command.end());
    return RunningProgram("/usr/bin/env", words, "", in.path()).finish(30);
  };
  // mpirun takes a second to end a job that failed: those wait at the same time.
  std::map<std::string, std::future<ProgramResult>> jobs;
  for (const Row& row : rows)
    if (is_launched(row) && !std::string(SLUICE_MPIRUN).empty())
      jobs.emplace(row.command, std::async(std::launch::async, run, row));
  for (const auto& [command, job] : jobs)
    job.wait();
  for (const Row& row : rows) {
    Arguments command = split(row.command);
    const bool launched = is_launched(row);
    const bool needs_mpi = launched || !take_variables(command).empty();
    programs.insert(command.front());
    if (needs_mpi && std::string(SLUICE_MPIRUN).empty()) continue;
    if (one_program_alone && row.command.find(" : ") != std::string::npos) {
      WARN("not tried, since this mpirun crashes: " << row.command);
      continue;
    }
    if (row.command.find("--device cuda") != std::string::npos && cuda_devices() > 0) continue;
    const ProgramResult result = launched ? jobs.at(row.command).get() : run(row);
    INFO(row.command);
    INFO("it should say: " << row.message);
    INFO("it says: " << result.err);
    CHECK_FALSE(result.timed_out);
    CHECK(result.exit_code == row.code);
    CHECK(says(row, result.err));
    if (!launched) CHECK(count_lines(result.err) == 1);
    // A plan that does not fit says what it lacks at length.
    if (row.message.find("comes to fitting") == std::string::npos)
      CHECK(last_line(result.err).size() <= 300);
    CHECK(in.entries() == before);
  }
  CHECK(programs == std::set<std::string>{"train_gpt2", "plan", "evaluate", "generate",
                                          "prepare_data", "convert", "probe", "train_mlp",
                                          "scripts/launch", "mpirun"});
}

}  // namespace sluice::test::mistakes_test
