#include "apps/checkpoint/checkpoint_saver.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
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

/// A file with its checksums. After a disk error it keeps the error and ignores further writes,
/// since the other ranks still send what rank 0 was to write.
class GuardedFile final : public Output {
 public:
  /// `place` returns the file's path; it may wait for the disk and throw.
  GuardedFile(std::string name, std::function<fs::path()> place, std::string& error)
      : name_(std::move(name)), place_(std::move(place)), error_(error) {}

  std::string name() const override { return name_; }
  void write(std::span<const std::byte> bytes) override {
    guard([&] {
      if (!file_) file_.emplace(place_());
      file_->write(bytes);
      sums_.add(bytes);
    });
  }
  void finish() override {
    guard([&] { file_->finish(); });
  }

  const SectionSums& sums() const { return sums_; }

 private:
  void guard(const std::function<void()>& body) {
    if (!error_.empty()) return;
    try {
      body();
    } catch (const std::exception& error) {
      error_ = error.what();
    }
  }

  std::string name_;
  std::function<fs::path()> place_;
  std::string& error_;
  std::optional<FileOutput> file_;
  SectionSums sums_;
};

/// Runs work on a disk.
using OnDisk = std::function<void(const std::function<void()>& work)>;

/// Makes a checkpoint whose files `write` fills and `on_disk` then publishes. Returns the error, or
/// "".
std::string make_checkpoint(const fs::path& folder, CheckpointManifest manifest, std::int64_t keep,
                            SaveResult& result, const std::function<void(Output&, Output&)>& write,
                            const OnDisk& on_disk) {
  std::string error;
  const auto guarded = [&](const auto& body) {
    if (!error.empty()) return;
    try {
      body();
    } catch (const std::exception& caught) {
      error = caught.what();
    }
  };
  std::optional<NewCheckpoint> checkpoint;
  const auto file = [&](const char* name) {
    const auto place = [&, name] {
      if (!checkpoint) checkpoint.emplace(folder, manifest.step);
      return checkpoint->file(name);
    };
    return GuardedFile((folder / name).string(), place, error);
  };
  GuardedFile weights = file(weights_file);
  GuardedFile optimizer = file(optimizer_file);
  write(weights, optimizer);
  manifest.files = {{weights_file, weights.sums()}, {optimizer_file, optimizer.sums()}};
  on_disk([&] {
    guarded([&] {
      const fs::path before = checkpoint->publish(manifest);
      result.path = checkpoint->path();
      if (!before.empty())
        result.warning = fmt::format("there was a {} already; it is kept as {}",
                                     result.path.string(), before.string());
      result.bytes = weights.sums().bytes() + optimizer.sums().bytes();
    });
    if (!error.empty()) checkpoint.reset();  // removes what was written
    try {
      if (error.empty()) remove_old_checkpoints(result.path, keep);
    } catch (const std::exception& caught) {
      result.warning = caught.what();
    }
  });
  return error;
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
  if (ranks.rank() > 0) {
    NoOutput nowhere;
    write_files(state, nowhere, nowhere);
    keep_alive(ranks, "checkpoint");
  } else if (copy_.memory) {
    save_copy(state, manifest);
    keep_alive(ranks, "checkpoint");
  } else {
    save_here(state, manifest);
  }
  // A save in flight reports its result later.
  return ranks.share_text(under_way_.valid() ? "" : last_error_, 0, "checkpoint").empty();
}

void CheckpointSaver::save_here(const CheckpointState& state, const CheckpointManifest& manifest) {
  const Stopwatch watch;
  SaveResult result{.step = manifest.step};
  result.error = make_checkpoint(
      folder_, manifest, keep_, result,
      [&](Output& weights, Output& optimizer) { write_files(state, weights, optimizer); },
      [&](const auto& publish) { keep_alive(state.ranks.control, "checkpoint", publish); });
  result.waited_ms = result.total_ms = watch.milliseconds();
  end(std::move(result));
}

void CheckpointSaver::save_copy(const CheckpointState& state, const CheckpointManifest& manifest) {
  const Stopwatch watch;
  MemoryOutput weights(copy_.weights()), optimizer(copy_.optimizer());
  write_files(state, weights, optimizer);
  SaveResult result{.step = manifest.step, .waited_ms = watch.milliseconds()};
  under_way_ = std::async(std::launch::async, [=, this]() mutable {
    result.error = make_checkpoint(
        folder_, manifest, keep_, result,
        [&](Output& first, Output& second) {
          first.write(copy_.weights());
          first.finish();
          second.write(copy_.optimizer());
          second.finish();
        },
        [](const auto& publish) { publish(); });
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
