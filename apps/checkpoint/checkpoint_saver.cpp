#include "apps/checkpoint/checkpoint_saver.h"

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <utility>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "apps/cli/progress.h"
#include "kernels/base/error.h"
#include "parallel/comm/keep_alive.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// A part of a file, with its checksums.
class SummedPart final : public Output {
 public:
  SummedPart(fs::path path, std::uint64_t offset) : file_(std::move(path), offset) {}

  std::string name() const override { return file_.name(); }
  void write(std::span<const std::byte> bytes) override {
    file_.write(bytes);
    sums_.add(bytes);
  }
  void finish() override { file_.finish(); }

  const std::string& error() const { return file_.error(); }
  const SectionSums& sums() const { return sums_; }

 private:
  PartOutput file_;
  SectionSums sums_;
};

/// Publishes a checkpoint whose files are written, or removes it after an error, and then removes
/// old ones.
void publish(std::optional<NewCheckpoint>& checkpoint, const CheckpointManifest& manifest,
             std::int64_t keep, SaveResult& result) {
  keep_error(result.error, [&] {
    const fs::path before = checkpoint->publish(manifest);
    result.path = checkpoint->path();
    if (!before.empty())
      result.warning = fmt::format("there was a {} already; it is kept as {}", result.path.string(),
                                   before.string());
    for (const auto& [name, sums] : manifest.files)
      result.bytes += sums.bytes();
  });
  if (!result.error.empty()) return checkpoint.reset();  // removes what was written
  try {
    remove_old_checkpoints(result.path, keep);
  } catch (const std::exception& caught) {
    result.warning = caught.what();
  }
}

}  // namespace

CheckpointSaver::CheckpointSaver(fs::path folder, std::int64_t keep, SaveNumbers numbers,
                                 CheckpointCopy copy)
    : folder_(std::move(folder)),
      keep_(keep),
      numbers_(std::move(numbers)),
      copy_(std::move(copy)) {}

void CheckpointSaver::synchronize(Communicator& control) {
  keep_alive(control, "checkpoint", [&] { end_save_in_flight(); });
}

void CheckpointSaver::end_save_in_flight() {
  if (under_way_.valid()) end(under_way_.get());
}

void CheckpointSaver::end(SaveResult result) {
  last_error_ = result.error;
  if (!result.error.empty())
    result.warning = fmt::format("step {} was not saved: {}; what was saved before stays",
                                 result.step, result.error);
  else
    numbers_ = {.lineage = lineage_, .last = lineage_.save()};
  ended_.push_back(std::move(result));
}

bool CheckpointSaver::save(std::int64_t step, const nlohmann::json& run,
                           const CheckpointState& state) {
  Communicator& ranks = state.ranks.control;
  state.ranks.optimizer.synchronize();
  synchronize(ranks);
  CheckpointManifest manifest = describe(step, run, state);
  manifest.keep = keep_;
  manifest.lineage = numbers_.lineage;
  manifest.lineage.add(numbers_.last + 1);
  lineage_ = manifest.lineage;
  CheckpointFiles files = lay_out(state);
  if (copy_.wanted)
    save_copy(files, ranks, manifest);
  else
    save_here(files, ranks, manifest);
  // A save in flight reports its result later.
  return ranks.share_text(under_way_.valid() ? "" : last_error_, 0, "checkpoint").empty();
}

void CheckpointSaver::save_here(CheckpointFiles& files, Communicator& ranks,
                                CheckpointManifest manifest) {
  const Stopwatch watch;
  SaveResult result{.step = manifest.step};
  std::optional<NewCheckpoint> checkpoint;
  keep_alive(ranks, "checkpoint", [&] {
    if (ranks.rank() == 0)
      keep_error(result.error, [&] { checkpoint.emplace(folder_, manifest.step); });
  });
  const Writers writers = find_writers(ranks, checkpoint ? checkpoint->folder() : fs::path());
  result.writers = static_cast<std::int64_t>(writers.ranks.size());
  if (!writers.ranks.empty()) {
    const auto part = [&](const char* name, const StateFile& layout) {
      const ByteRange mine = range_of_writer(layout.bytes(), ranks.rank(), writers.ranks);
      return SummedPart(writers.folder / name, mine.begin);
    };
    SummedPart weights = part(weights_file, files.weights);
    SummedPart optimizer = part(optimizer_file, files.optimizer);
    write_files(files, ranks, writers.ranks, weights, optimizer);
    result.error =
        first_error(ranks, weights.error().empty() ? optimizer.error() : weights.error());
    if (result.error.empty())
      manifest.files = {
          {weights_file, gather_sums(ranks, writers.ranks, files.weights.bytes(), weights.sums())},
          {optimizer_file,
           gather_sums(ranks, writers.ranks, files.optimizer.bytes(), optimizer.sums())}};
  }
  keep_alive(ranks, "checkpoint", [&] {
    if (ranks.rank() == 0) publish(checkpoint, manifest, keep_, result);
  });
  result.waited_ms = result.total_ms = watch.milliseconds();
  if (ranks.rank() == 0) end(std::move(result));
}

void CheckpointSaver::save_copy(CheckpointFiles& files, Communicator& ranks,
                                const CheckpointManifest& manifest) {
  const Stopwatch watch;
  if (ranks.rank() > 0) {
    NoOutput nowhere;
    return write_files(files, ranks, {0}, nowhere, nowhere);
  }
  MemoryOutput weights(copy_.weights_bytes()), optimizer(copy_.optimizer_bytes());
  write_files(files, ranks, {0}, weights, optimizer);
  SaveResult result{.step = manifest.step, .writers = 1, .waited_ms = watch.milliseconds()};
  under_way_ = std::async(std::launch::async, [=, this]() mutable {
    std::optional<NewCheckpoint> checkpoint;
    keep_error(result.error, [&] { checkpoint.emplace(folder_, manifest.step); });
    CheckpointManifest complete = manifest;
    const auto write = [&](const char* name, std::span<const std::byte> bytes) {
      if (!result.error.empty()) return;
      SummedPart file(checkpoint->file(name), 0);
      file.write(bytes);
      file.finish();
      result.error = file.error();
      complete.files[name] = file.sums();
    };
    write(weights_file, copy_.weights_bytes());
    write(optimizer_file, copy_.optimizer_bytes());
    publish(checkpoint, complete, keep_, result);
    result.total_ms = watch.milliseconds();
    return result;
  });
}

std::vector<SaveResult> CheckpointSaver::results() {
  if (under_way_.valid() &&
      under_way_.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
    end_save_in_flight();
  return std::exchange(ended_, {});
}

void CheckpointSaver::require_saved(Communicator& control) const {
  const std::string error = control.share_text(last_error_, 0, "last checkpoint");
  if (!error.empty()) fail(fmt::format("the checkpoint was not saved: {}", error));
}

fs::path save_checkpoint(const fs::path& folder, std::int64_t step, const nlohmann::json& run,
                         const CheckpointState& state, std::int64_t keep) {
  const CheckpointHistory history(folder);
  SaveNumbers numbers{.last = history.last_save()};
  if (!history.entries().empty() && history.entries().back().manifest)
    numbers.lineage = history.entries().back().manifest->lineage;
  CheckpointSaver saver(folder, keep, std::move(numbers));
  saver.save(step, run, state);
  saver.require_saved(state.ranks.control);
  return checkpoint_path(folder, step);
}

}  // namespace sluice
