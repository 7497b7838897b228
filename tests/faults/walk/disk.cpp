#include "tests/faults/walk/disk.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "tests/faults/runs.h"

namespace sluice::test::walk {

namespace {

std::string of_bytes(const std::string& bytes) {
  return fmt::format("{}-{:016x}", bytes.size(), std::hash<std::string>{}(bytes));
}

std::uint32_t crc(const char* bytes, std::size_t count) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(bytes), static_cast<uInt>(count)));
}

std::optional<Json> state_of(const fs::path& checkpoint) {
  if (!fs::is_regular_file(checkpoint / "state.json")) return {};
  Json state = Json::parse(read_file(checkpoint / "state.json"), nullptr, false);
  if (!state.is_object() || !state.contains("crc32")) return {};
  Json rest = state;
  rest.erase("crc32");
  const std::string text = rest.dump();
  if (state["crc32"] != crc(text.data(), text.size())) return {};
  return state;
}

}  // namespace

std::string digest(const fs::path& path) {
  if (fs::is_regular_file(path)) return of_bytes(read_file(path));
  if (!fs::is_directory(path)) return "";
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  std::string all;
  for (const auto& name : names)
    all += name + ":" + digest(path / name) + ";";
  return of_bytes(all);
}

Digests snapshot(const fs::path& folder) {
  Digests all;
  if (!fs::exists(folder)) return all;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    if (name != "run.lock") all[name] = entry.is_directory() ? "folder" : digest(entry.path());
  }
  return all;
}

std::string first_difference(const Digests& before, const Digests& after) {
  for (const auto& [name, bytes] : before)
    if (!after.contains(name))
      return name + " is gone";
    else if (after.at(name) != bytes)
      return name + " has other bytes";
  for (const auto& [name, bytes] : after)
    if (!before.contains(name)) return name + " is new";
  return "";
}

std::optional<Manifest> read_manifest_of(const fs::path& checkpoint) {
  const auto state = state_of(checkpoint);
  if (!state) return {};
  Manifest manifest;
  manifest.step = state->at("step");
  manifest.keep = state->at("keep");
  manifest.micro_batch = state->at("memory").at("micro_batch");
  if (state->contains("spikes")) manifest.skipped = state->at("spikes").value("skipped_batches", 0);
  for (const Json& stretch : state->at("lineage").at("saves"))
    for (std::int64_t save = stretch.at(0); save <= stretch.at(1); ++save)
      manifest.saves.push_back(save);
  return manifest;
}

bool is_whole(const fs::path& checkpoint) {
  const auto state = state_of(checkpoint);
  if (!state) return false;
  for (const auto& [name, file] : state->at("files").items()) {
    if (!fs::is_regular_file(checkpoint / name)) return false;
    const std::string bytes = read_file(checkpoint / name);
    if (bytes.size() != file.at("bytes")) return false;
    const std::size_t section = file.at("section_bytes");
    for (std::size_t at = 0, i = 0; at < bytes.size(); at += section, ++i)
      if (file.at("crc32").at(i) != crc(&bytes[at], std::min(section, bytes.size() - at)))
        return false;
  }
  return true;
}

Json read_resume(const fs::path& checkpoints) {
  if (!fs::exists(checkpoints / "resume.json")) return nullptr;
  return Json::parse(read_file(checkpoints / "resume.json"), nullptr, false);
}

std::vector<Json> log_after(const fs::path& log, std::size_t offset) {
  std::vector<Json> events;
  if (!fs::exists(log)) return events;
  const std::string text = read_file(log);
  std::istringstream lines(text.substr(std::min(offset, text.size())));
  for (std::string line; std::getline(lines, line);)
    if (Json event = Json::parse(line, nullptr, false); !event.is_discarded())
      events.push_back(std::move(event));
  return events;
}

fs::path References::of(const Way& way) {
  if (!dir_) dir_.emplace(FaultRuns::in_memory());
  const Leg& leg = way.back();
  const Way before(way.begin(), way.end() - 1);
  const int from = before.empty() ? 0 : before.back().until;
  const std::string name =
      fmt::format("{}|{} {} {}", text_of(before), leg.skipped, leg.micro_batch, leg.ranks);
  Made& made = made_[name];
  if (made.until < leg.until) {
    const fs::path output = dir_->path() / std::to_string(number_++);
    Arguments program = flags_;
    if (!before.empty()) {
      program.push_back("--resume=" + of(before).string());
      if (const int more = leg.skipped - before.back().skipped; more > 0)
        program.push_back("--skip-batches=" + std::to_string(more));
    }
    made = {output / "checkpoints", std::max(leg.until, from + 8)};
    for (const std::string& word :
         {fmt::format("--micro-batch={}", leg.micro_batch), fmt::format("--steps={}", made.until),
          std::string("--save-every=1"), std::string("--keep=1000"), "--output=" + output.string()})
      program.push_back(word);
    std::string run = (fs::path(SLUICE_BIN_DIR) / "train_gpt2").string();
    if (leg.ranks > 1) {
      program.insert(program.begin(), {"-n", std::to_string(leg.ranks), run});
      const Arguments given = mpirun_flags();
      program.insert(program.begin(), given.begin(), given.end());
      run = SLUICE_MPIRUN;
    }
    const ProgramResult result = run_program(run, program);
    if (result.exit_code != 0) throw std::runtime_error("no reference: " + result.err);
  }
  // made_ may have grown meanwhile.
  return made_.at(name).checkpoints / name_of(leg.until);
}

void References::tidy() {
  if (made_.size() < 300) return;
  made_.clear();
  dir_.reset();
}

}  // namespace sluice::test::walk
