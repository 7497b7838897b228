#include "apps/train/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "apps/cli/sizes.h"
#include "engine/io/file.h"
#include "engine/ops/elementwise.h"
#include "parallel/pipeline/schedule_text.h"
#include "parallel/pipeline/validator.h"

namespace sluice {
namespace {

Schedule scheduled(const TrainConfig& o, std::int64_t layers, int micro_batches) {
  const int ranks = static_cast<int>(o.parallel.pp);
  const PipelineSchedule asked = o.parallel.schedule();
  const int virtual_stages =
      static_cast<int>(o.parallel.layer_major() ? layers : asked.virtual_stages);
  const std::string& name = asked.file;
  if (name.empty()) return make_schedule(asked.name, ranks, virtual_stages, micro_batches);
  if (!std::filesystem::is_regular_file(name))
    fail(fmt::format(
             "--pipeline {} is neither gpipe, 1f1b, interleaved, layer-major, layer-split or zb-h1 "
             "nor a file",
             name),
         ErrorKind::usage);
  Schedule schedule = schedule_from_csv(read_text_file(name));
  if (static_cast<int>(schedule.ranks.size()) != ranks || schedule.micro_batches != micro_batches)
    fail(fmt::format("--pipeline {} has rows for ranks: {}, and micro-batches: {}; this run has "
                     "--pp {} and {} micro-batches",
                     name, schedule.ranks.size(), schedule.micro_batches, ranks, micro_batches),
         ErrorKind::usage);
  return schedule;
}

/// Returns the forward passes of a layer-major schedule: groups of `group` micro-batches through
/// one stage after the other.
Schedule layer_major_forwards(int stages, int micro_batches, int group) {
  Schedule schedule{.stages = stages, .micro_batches = micro_batches, .ranks = {{}}};
  for (int first = 0; first < micro_batches; first += group)
    for (int stage = 0; stage < stages; ++stage)
      for (int i = first; i < std::min(first + group, micro_batches); ++i)
        schedule.ranks[0].push_back({Action::Kind::forward, stage, i});
  return schedule;
}

/// Returns a deadlock-free schedule of forward passes, micro-batch by micro-batch. Each receive is
/// posted before the previous stage computes. With virtual stages it takes groups of as many
/// micro-batches as there are ranks, so that no rank waits for a micro-batch to come back round.
Schedule forward_only(const std::vector<int>& of_rank, int ranks, int micro_batches) {
  Schedule schedule{.stages = static_cast<int>(of_rank.size()), .micro_batches = micro_batches};
  schedule.ranks.resize(static_cast<std::size_t>(ranks));
  bool round = true;
  for (int stage = 0; stage < schedule.stages; ++stage)
    round = round && of_rank[static_cast<std::size_t>(stage)] == stage % ranks;
  const int group = round ? ranks : 1;
  for (int first = 0; first < micro_batches; first += group)
    for (int stage = 0; stage < schedule.stages; ++stage)
      for (int i = first; i < std::min(first + group, micro_batches); ++i)
        schedule.ranks[static_cast<std::size_t>(of_rank[static_cast<std::size_t>(stage)])]
            .push_back({Action::Kind::forward, stage, i});
  return lower(schedule);
}

}  // namespace

std::vector<DecoderPart> PipelinePlan::parts_of(int rank) const {
  std::vector<DecoderPart> mine;
  for (std::size_t stage = 0; stage < parts.size(); ++stage)
    if (rank_of_stage[stage] == rank) mine.push_back(parts[stage]);
  return mine;
}

TrainConfig as_layer_major(TrainConfig o, std::int64_t micro_batch) {
  o.parallel.pipeline = {.name = ScheduleName::layer_major};
  o.batch.micro_batch = micro_batch;
  return o;
}

std::shared_ptr<const PipelinePlan> plan_pipeline(const TrainConfig& o, const DecoderConfig& config,
                                                  std::int64_t micro_batch, DeviceKind device) {
  if (!o.parallel.pipelined()) return nullptr;
  auto plan = std::make_shared<PipelinePlan>();
  plan->schedule = scheduled(o, config.n_layer, static_cast<int>(o.batch_share() / micro_batch));
  const bool add_messages = !has_messages(plan->schedule);
  if (add_messages) plan->schedule = lower(plan->schedule);
  try {
    plan->inputs = validate(plan->schedule).inputs;
  } catch (const Error& error) {
    const std::string why = error.what();
    if (!add_messages || !why.starts_with("deadlock")) throw;
    fail(why +
             "\n  receives were added one action ahead; a file that has its own may post them "
             "earlier",
         ErrorKind::usage);
  }
  plan->parts = split_blocks(config, plan->schedule.stages, parse_block_split(o.parallel.split));
  plan->rank_of_stage = rank_of_stage(plan->schedule);
  plan->layer_major = o.parallel.layer_major();
  plan->stash = o.parallel.stashed();
  plan->max_stashed = o.parallel.max_stash;
  if (!o.parallel.max_stash && o.parallel.layer_major() && plan->stash == Stash::input &&
      device == DeviceKind::cuda)
    plan->max_stashed = 0;
  return plan;
}

PipelineLinks::PipelineLinks(const PipelinePlan& plan, int rank, const MakeGroup& make)
    : stages(plan.rank_of_stage, rank, make) {
  const std::array last{plan.rank_of_stage.front(), plan.rank_of_stage.back()};
  if (rank != last[0] && rank != last[1]) return;
  ends =
      make(std::span(last).first(last[0] == last[1] ? 1 : 2), 2 * plan.parts.size(), "tied table");
}

Pipeline::Pipeline(Decoder& model, ParameterSpace& space, const PipelinePlan& plan,
                   const Ranks& ranks, std::int64_t piece, const DevicePtr& host)
    : model_(model),
      space_(space),
      plan_(plan),
      all_(*ranks.control),
      rank_(ranks.stage()),
      predictor_(ranks.mesh.rank(0, plan.rank_of_stage.back(), 0)),
      stages_([&] {
        std::vector<std::unique_ptr<DecoderStage>> stages(plan.parts.size());
        for (std::size_t stage = 0; stage < stages.size(); ++stage)
          if (plan.rank_of_stage[stage] == rank_)
            stages[stage] = std::make_unique<DecoderStage>(model, plan.parts[stage], data_,
                                                           space.device(), space.working().dtype());
        return stages;
      }()),
      links_(plan, rank_, ranks.group),
      executor_(plan.schedule, rank_, here(), links_.stages, plan.stash, space.device()) {
  if (plan.max_stashed && host != nullptr) executor_.spill(*plan.max_stashed, host);
  if (links_.ends == nullptr || !model.trains_tied()) return;
  tied_.emplace(space, model.tied_table(), *links_.ends, piece);
  if (tied_->second()) model.set_head_table(tied_->second());
}

std::vector<Stage*> Pipeline::here() const {
  std::vector<Stage*> all;
  for (const auto& stage : stages_)
    all.push_back(stage.get());
  return all;
}

/// Returns the range of the part's parameters in the space, without the tied table.
SpaceRange Pipeline::range_of(const DecoderPart& part) const {
  const auto begin_of = [&](int section) {
    const auto slot = std::ranges::find_if(space_.slots(), [&](const auto& candidate) {
      return candidate.section >= section && candidate.name != model_.tied_table();
    });
    return slot != space_.slots().end() ? slot->offset : space_.size();
  };
  const bool first = part.first == 0, last = part.last == model_.config().n_layer;
  // The range ends at the next section on this rank, which belongs to another stage.
  return {begin_of(first ? 0 : Decoder::section_of(part.first)),
          last ? space_.size() : begin_of(Decoder::section_of(part.last))};
}

void Pipeline::step(const MicroBatches& data, const Hooks& hooks) {
  data_ = data;
  if (tied_) tied_->forget_gradients();
  bool first = true;
  const auto part_of = [&](int stage) -> const DecoderPart& {
    return plan_.parts[static_cast<std::size_t>(stage)];
  };
  const auto last = [&](int micro_batch) {
    return micro_batch + 1 == plan_.schedule.micro_batches;
  };
  executor_.run({.loss = hooks.loss,
                 .before_backward =
                     [&](int stage, int micro_batch) {
                       if (std::exchange(first, false)) hooks.before_first_backward();
                       if (last(micro_batch)) hooks.before_last_backward(range_of(part_of(stage)));
                       if (hooks.before_backward)
                         hooks.before_backward(part_of(stage), micro_batch);
                     },
                 .after_backward =
                     [&](int stage, int micro_batch) {
                       if (last(micro_batch) && hooks.after_last_backward)
                         hooks.after_last_backward(part_of(stage));
                     }});
  if (tied_) tied_->add_gradients();
}

void Pipeline::evaluate(const MicroBatches& data, int count,
                        const std::function<void(int, const Tensor&)>& loss) {
  data_ = data;
  const int stages = plan_.schedule.stages;
  // No more outputs wait between two stages than in a training step, or than a plan counts.
  const int group = std::min(plan_.schedule.micro_batches, 4 * stages);
  const Schedule schedule =
      plan_.layer_major
          ? layer_major_forwards(stages, count, group)
          : forward_only(plan_.rank_of_stage, static_cast<int>(plan_.schedule.ranks.size()), count);
  PipelineExecutor(schedule, rank_, here(), links_.stages, Stash::graph, space_.device())
      .run({.loss = loss, .before_backward = {}});
}

std::vector<std::int32_t> Pipeline::generate(std::span<const std::int32_t> prompt,
                                             const Generation& options) {
  const NoGrad no_grad;
  KeyValueCache cache =
      make_cache(model_, plan_.parts_of(rank_), space_.device(), space_.working().dtype(),
                 cache_positions(model_.config(), prompt.size(), options));
  const auto next = [&](std::span<const std::int32_t> fresh, KeyValueCache* seen,
                        std::size_t position) {
    return next_token(fresh, *seen, options.sampling, position);
  };
  return sluice::generate(model_.config(), next, &cache, prompt, options.max_tokens);
}

std::int32_t Pipeline::next_token(std::span<const std::int32_t> fresh, KeyValueCache& cache,
                                  const Sampling& sampling, std::size_t position) {
  const auto count = static_cast<std::int64_t>(fresh.size()), width = model_.config().n_embd;
  const DevicePtr& device = space_.device();
  std::int32_t token = 0;
  KeyValueCache* const caches[] = {&cache};
  Tensor stream;  // residual stream from the stage before, on this rank
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if (!stages_[stage]) continue;
    const int number = static_cast<int>(stage);
    const auto cross = [&](Communicator* link) {
      if (link == nullptr) return;
      if (!stream) stream = Tensor::empty(device, {1, count, width}, space_.working().dtype());
      link->broadcast(stream.view(), 0, {.label = "sample", .stream = stream.stream()})->wait();
    };
    if (stage > 0) cross(links_.stages.outputs(number - 1));
    ResidualPair pair{.stream = stream, .branch = {}};
    if (stage == 0) {
      const Tensor tokens = Tensor::from_tokens(device, {1, count}, fresh);
      pair = model_.embed(tokens, {}, continuing(tokens, caches));
    }
    pair = model_.blocks(plan_.parts[stage], std::move(pair), {}, caches);
    if (stage + 1 == stages_.size()) {
      const Tensor last = model_.normalized(pair).slice((count - 1) * width, {1, width});
      token = draw(model_.logits_of_token(last), sampling, position);
      break;
    }
    stream = add(pair.stream, pair.branch);
    cross(links_.stages.outputs(number));
    if (!stages_[stage + 1]) stream = {};
  }
  cache.length += count;
  return all_.gather_values(token, "sample")[static_cast<std::size_t>(predictor_)];
}

}  // namespace sluice
