#include "apps/plan/continued_plan.h"

#include <fmt/format.h>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Fills the options that the flags leave open from the record.
TrainConfig kept(TrainConfig o, const RecordedChoice& record, bool micro_batch) {
  if (micro_batch && !o.batch.micro_batch) o.batch.micro_batch = record.micro_batch;
  if (!o.memory.state_layout) o.memory.state_layout = record.layout;
  if (!o.memory.head_chunk) o.memory.head_chunk = record.head_chunk;
  if (!o.memory.gradients) o.memory.gradients = record.narrow_gradients ? DType::bf16 : DType::f32;
  return o;
}

}  // namespace

std::optional<RecordedChoice> expected_record(const TrainConfig& o) {
  using From = ResumeOption::From;
  const bool newest = o.checkpoint.resume.from == From::newest;
  if (o.checkpoint.resume.from == From::nothing || (newest && o.checkpoint.output.empty()))
    return {};
  fs::path checkpoint = o.checkpoint.resume.path;
  const fs::path run =
      newest ? fs::path(o.checkpoint.output) : run_of_resume(o.checkpoint.resume.path);
  if (!run.empty()) {
    checkpoint = CheckpointHistory(run / "checkpoints").newest();
    if (checkpoint.empty()) return {};
  }
  try {
    return recorded_choice(checkpoint, read_manifest(checkpoint));
  } catch (const Error&) {
    return {};
  }
}

ContinuedPlan plan_continued(const TrainConfig& o, RunSetup& setup, const DeviceProfile& profile,
                             const std::optional<RecordedChoice>& record) {
  const auto planned_with = [&](const TrainConfig& options, std::string warning) {
    ContinuedPlan plan{plan_run(options, setup, profile), o, std::move(warning)};
    const MemoryChoice& choice = plan.planned.chosen.choice;
    if (!choice.offloads_weights() || o.parallel.pipeline) return plan;
    plan.options = as_layer_major(o, choice.micro_batch);
    resolve_memory(plan.options, setup);
    return plan;
  };
  if (!record) return planned_with(o, "");
  std::string warning;
  for (const bool micro_batch : {true, false}) {
    if (!micro_batch && o.batch.micro_batch) break;  // the retry would be identical
    const TrainConfig as_before = kept(o, *record, micro_batch);
    try {
      resolve_memory(as_before, setup);
      return planned_with(as_before, warning);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      if (!warning.empty()) continue;
      warning = fmt::format(
          "the checkpoint was written with {}; with that: {}. The run is planned anew, and would "
          "round otherwise than before",
          to_flags(*record), error.what());
    }
  }
  resolve_memory(o, setup);
  return planned_with(o, warning);
}

}  // namespace sluice
