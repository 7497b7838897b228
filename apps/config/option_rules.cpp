#include <fmt/format.h>

#include "apps/config/rule_words.h"

namespace sluice {
namespace {

using namespace rule_words;

/// True if there are stages, or a plan may choose some.
bool has_stages(F f) {
  return f.o.parallel.pipelined() || f.o.planning.gpus > 0;
}
bool has_adapters(const AdapterConfig& o) {
  return o.rank || !o.folder.empty();
}
std::string adapters(F f) {
  return f.o.adapter.folder.empty() ? fmt::format("--lora-rank {}", *f.o.adapter.rank)
                                    : "--adapter " + f.o.adapter.folder;
}

const Rule of_options[] = {
    // Ranks.
    {Known::options, "--pipeline-split", "a run without --pp or --pipeline", "it has no stages",
     [](F f, R) {
       return when(!has_stages(f) && f.o.parallel.split != "blocks",
                   fmt::format("--pipeline-split {} is for pipelines: give --pp or --pipeline too",
                               f.o.parallel.split));
     }},
    {Known::options, "--stash", "a run without --pp or --pipeline", "it has no stages",
     [](F f, R) {
       return when(!has_stages(f) && f.o.parallel.stashed() != Stash::graph,
                   fmt::format("--stash {} is for pipelines: give --pp or --pipeline too",
                               stash_text(f.o.parallel)));
     }},
    {Known::options, "--pp", "--pipeline", "layer-major has all layers on one rank",
     [](F f, R) {
       return when(
           layer_major(f) && f.o.parallel.pp > 1,
           fmt::format(
               "--pipeline layer-major has all layers on one rank: leave out --pp {}, or take "
               "gpipe, 1f1b, interleaved or zb-h1",
               f.o.parallel.pp));
     }},
    {Known::options, "--pipeline-split", "--pipeline", "layer-major has a stage for each block",
     [](F f, R) {
       return when(
           layer_major(f) && f.o.parallel.split != "blocks",
           fmt::format(
               "--pipeline layer-major has a stage for each block: leave out --pipeline-split "
               "{}",
               f.o.parallel.split));
     }},
    {Known::options, "--sequence-parallel", "a run without --tp", "it divides what --tp repeats",
     [](F f, R) {
       return when(f.o.parallel.sequence_parallel && f.o.parallel.tp == 1 && f.o.planning.gpus == 0,
                   "--sequence-parallel is for ranks that divide the matrices: give --tp too");
     }},
    {Known::options, "--optimizer", "--tp", "Adafactor needs the sums of whole rows and columns",
     [](F f, R) {
       return when(
           f.o.parallel.tp > 1 && uses(f, OptimizerKind::adafactor),
           fmt::format(
               "--optimizer adafactor cannot go with --tp {}: it needs the sums of whole rows "
               "and columns, which --tp divides between ranks; use adamw",
               f.o.parallel.tp));
     }},
    {Known::options, "--state-layout --optimizer", "--tp",
     "int8 has a scale for every 256 elements of a row",
     [](F f, R) {
       const bool eight = uses(f, OptimizerKind::adamw8bit);
       return when(
           f.o.parallel.tp > 1 && (eight || f.o.memory.state_layout == StateLayout::int8),
           fmt::format("{} cannot go with --tp {}: it has a scale for every 256 elements of a row, "
                       "which --tp divides between ranks; use --state-layout bf16mv",
                       eight ? "--optimizer adamw8bit" : "--state-layout int8", f.o.parallel.tp));
     }},
    {Known::options, "--lora-rank --adapter", "--sequence-parallel", "adapters read all tokens",
     [](F f, R) {
       return f.o.parallel.sequence_parallel && has_adapters(f.o.adapter)
                  ? adapters(f) + " cannot go with --sequence-parallel: adapters read all tokens"
                  : "";
     }},

    // Adapters.
    {Known::options, "--lora-alpha --lora-targets --lora-dropout --int8-base",
     "a run without --lora-rank or --adapter", "it has no adapters",
     [](F f, R) -> std::string {
       if (has_adapters(f.o.adapter)) return "";
       const AdapterConfig& o = f.o.adapter;
       const char* const given = o.alpha              ? "--lora-alpha"
                                 : !o.targets.empty() ? "--lora-targets"
                                 : o.dropout          ? "--lora-dropout"
                                 : o.int8_base        ? "--int8-base"
                                                      : "";
       return when(*given != 0, fmt::format("{} is for adapters: give --lora-rank too", given));
     }},
    {Known::options, "--lora-rank --lora-alpha --lora-targets", "--adapter",
     "the folder of the adapters has them",
     [](F f, R) -> std::string {
       const AdapterConfig& o = f.o.adapter;
       const char* const decided = o.rank               ? "--lora-rank"
                                   : o.alpha            ? "--lora-alpha"
                                   : !o.targets.empty() ? "--lora-targets"
                                                        : "";
       return when(!o.folder.empty() && *decided != 0,
                   fmt::format("{}: --adapter {} decides it; leave it out", decided, o.folder));
     }},

    // Optimizers.
    {Known::options, "--muon-lr --muon-momentum", "--optimizer", "they are Muon's",
     [](F f, R rule) {
       return uses(f, OptimizerKind::muon)
                  ? ""
                  : idle(f, rule, fmt::format("is for --optimizer muon, not {}", optimizer(f)),
                         true);
     }},
    {Known::options, "--beta1", "--optimizer", "Adafactor has no first moment",
     [](F f, R rule) {
       return uses(f, OptimizerKind::adafactor)
                  ? idle(f, rule, "is AdamW's, and the optimizer is adafactor")
                  : "";
     }},
    {Known::options, "--beta2 --eps", "--optimizer", "SGD and Adafactor have none",
     [](F f, R rule) {
       return uses(f, OptimizerKind::adafactor) || uses(f, OptimizerKind::sgd)
                  ? idle(f, rule, fmt::format("is AdamW's, and the optimizer is {}", optimizer(f)))
                  : "";
     }},
    {Known::options, "--min-lr", "--lr-schedule", "constant keeps the learning rate",
     [](F f, R rule) {
       return f.o.optimizer.schedule == ScheduleKind::constant &&
                      f.o.optimizer.min_lr.value_or(0) > 0
                  ? idle(f, rule, "is where the rate ends, and --lr-schedule constant keeps it")
                  : "";
     }},
    {Known::options, "--gradients", "--optimizer", "SGD updates from fp32 gradients",
     [](F f, R) {
       return when(f.o.memory.gradients == DType::bf16 && uses(f, OptimizerKind::sgd),
                   "--gradients bf16: SGD updates from fp32 gradients; use --gradients fp32");
     }},
    {Known::options, "--state-layout", "--optimizer", "narrow layouts are of AdamW's moments",
     [](F f, R) -> std::string {
       if (!f.o.memory.state_layout) return "";
       const StateLayout layout = *f.o.memory.state_layout;
       const bool wide = layout == StateLayout::fp32 || layout == StateLayout::split;
       const char* const why =
           uses(f, OptimizerKind::sgd) && layout != StateLayout::fp32 ? "keeps its state in fp32"
           : uses(f, OptimizerKind::muon) && !wide ? "keeps its momentum in fp32; use fp32 or split"
           : uses(f, OptimizerKind::adafactor) && !wide
               ? "has no moments to narrow; use fp32 or split"
               : "";
       if (uses(f, OptimizerKind::adamw8bit))
         return when(layout != StateLayout::int8,
                     fmt::format("--optimizer adamw8bit is adamw with --state-layout int8, not {}",
                                 name_of(layout)));
       return when(*why != 0, fmt::format("--state-layout {} is AdamW's; --optimizer {} {}",
                                          name_of(layout), optimizer(f), why));
     }},
    {Known::options, "--state-home", "--optimizer", "Adafactor's state is small",
     [](F f, R) {
       return when(
           !f.o.memory.state_home.empty() && uses(f, OptimizerKind::adafactor),
           fmt::format(
               "--state-home {}: with --optimizer adafactor state is small and stays in memory",
               f.o.memory.state_home));
     }},
    {Known::options, "--prompt --sample-every", "--sample-tokens", "0 makes no samples",
     [](F f, R rule) {
       return f.o.evaluation.sample_tokens == 0
                  ? idle(f, rule, "is for samples, and --sample-tokens is 0")
                  : "";
     }},
    {Known::options, "--cuda-graph", "several ranks or a pipeline", "a pass waits for other ranks",
     [](F f, R) {
       return when(f.o.machine.cuda_graph && among_ranks(f),
                   "--cuda-graph is for one rank without a pipeline; leave it out");
     }},

    // Output and plans.
    {Known::options, "--quiet", "--verbose", "they are opposites",
     [](F f, R) {
       return when(f.o.log.quiet && f.o.log.verbose,
                   "--quiet and --verbose ask for opposite things; give one of them");
     }},
    {Known::options, "--scaling", "--pp --pipeline", "it predicts data parallelism alone",
     [](F f, R) {
       return when(f.o.planning.scaling && f.o.parallel.pipelined(),
                   "--scaling predicts data parallelism alone; leave --pp and --pipeline out");
     }},
    {Known::options, "--scaling", "--tp", "it predicts data parallelism alone",
     [](F f, R) {
       return when(f.o.planning.scaling && f.o.parallel.tp > 1,
                   "--scaling predicts data parallelism alone; leave --tp out");
     }},
    {Known::options, "--gpus", "--scaling --schedule-svg --schedule-csv",
     "it compares many ways to train",
     [](F f, R) {
       const PlanConfig& o = f.o.planning;
       return when(o.gpus > 0 && (o.scaling || !o.schedule_svg.empty() || !o.schedule_csv.empty()),
                   "--gpus looks at many ways; --scaling, --schedule-svg and --schedule-csv are "
                   "for one");
     }},
    {Known::options, "--gpus", "--pipeline",
     "a file is for one number of ranks; layer-major is not tried",
     [](F f, R) -> std::string {
       if (f.o.planning.gpus == 0 || !f.o.parallel.pipeline) return "";
       const std::string& file = f.o.parallel.pipeline->file;
       if (!file.empty())
         return fmt::format("--gpus with --pipeline {}: a file is for one number of ranks", file);
       return when(layer_major(f),
                   "--gpus does not try --pipeline layer-major; plan it with --dp and --tp");
     }},
    {Known::options, "--gpus", "--state-home", "CPUs get no share of the updates",
     [](F f, R) {
       return when(f.o.planning.gpus > 0 && !f.o.memory.state_home.empty(),
                   "--gpus gives CPUs no share of the updates; --state-home is for one way");
     }},
    {Known::options, "--gpus", "--cuda-graph", "a graph is for one rank",
     [](F f, R) {
       return when(f.o.planning.gpus > 0 && f.o.machine.cuda_graph,
                   "--gpus looks at many ranks; --cuda-graph is for one");
     }},
};

}  // namespace

std::span<const Rule> option_rules() {
  return of_options;
}

}  // namespace sluice
