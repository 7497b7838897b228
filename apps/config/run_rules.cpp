#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "apps/config/rule_words.h"

namespace sluice {
namespace {

using namespace rule_words;

bool asks(F f, Residency residency) {
  return f.placement.count(residency) > 0;
}
bool offloads(F f) {
  return f.placement.residency && f.placement.count(Residency::device) < f.model->n_layer;
}
bool inputs_on_host(F f) {
  return f.placement.recompute &&
         std::ranges::count(*f.placement.recompute, Recompute::block_on_host) > 0;
}

/// Returns what is wrong with --placement, where it is.
std::string misplaced(F f, bool broken, const std::string& why) {
  return broken ? fmt::format("--placement {}: {}", f.o.memory.placement, why) : "";
}

const Rule of_runs[] = {
    // Adapters and optimizers.
    {Known::run, "--lora-dropout", "--tp", "ranks would drop other columns than one process",
     [](F f, R) {
       return when(
           f.o.parallel.tp > 1 && f.model->lora.dropout > 0,
           fmt::format(
               "--tp {}: ranks would drop other columns than one process, and the adapters' "
               "dropout is {}; give --lora-dropout 0",
               f.o.parallel.tp, f.model->lora.dropout));
     }},
    {Known::run, "--lora-dropout", "--cuda-graph", "a graph draws the same numbers in every step",
     [](F f, R) {
       return when(
           f.o.machine.cuda_graph && f.model->lora.dropout > 0,
           fmt::format("--cuda-graph would draw the same numbers in every step, and the adapters' "
                       "dropout is {}; leave it out",
                       f.model->lora.dropout));
     }},
    {Known::run, "--gradients", "--precision", "bf16 gradients are of bf16 weights",
     [](F f, R) {
       return when(f.o.memory.gradients == DType::bf16 && f.working != DType::bf16,
                   fmt::format("--gradients bf16 needs --precision bf16, not {} weights",
                               name_of(f.working)));
     }},
    {Known::run, "--state-home", "--optimizer", "Muon updates on the GPU alone",
     [](F f, R) {
       return when(
           !f.o.memory.state_home.empty() && uses(f, OptimizerKind::muon) && f.gpu,
           fmt::format(
               "--state-home {}: the CPU would update the state, and --optimizer muon updates "
               "on the GPU alone",
               f.o.memory.state_home));
     }},

    // The model and the data.
    {Known::run, "--n-layer --n-head --n-embd", "--model", "it has a shape",
     [](F f, R) -> std::string {
       const ModelConfig& o = f.o.model;
       if (o.name.empty()) return "";
       for (const auto& [flag, asked, has] : {std::tuple("--n-layer", o.n_layer, f.model->n_layer),
                                              std::tuple("--n-head", o.n_head, f.model->n_head),
                                              std::tuple("--n-embd", o.n_embd, f.model->n_embd)})
         if (asked != has && std::ranges::find(f.o.given.all, flag) != f.o.given.all.end())
           return fmt::format(
               "{} is for a shape of your own, and --model {} decides it ({}); leave it out", flag,
               o.name, has);
       return "";
     }},
    {Known::run, "--tokenizer", "data of tokens", "there is no text",
     [](F f, R rule) {
       return f.has_data && !f.can_sample
                  ? idle(f, rule, fmt::format("is for text, and {} holds tokens", f.data_name))
                  : "";
     }},
    {Known::run, "--prompt --sample-every --sample-tokens", "data of tokens",
     "there is no tokenizer, unless --tokenizer-dir has one",
     [](F f, R rule) {
       return f.has_data && !f.can_sample && f.o.evaluation.sample_tokens > 0
                  ? idle(
                        f, rule,
                        fmt::format("is for samples, and {} has no tokenizer; give --tokenizer-dir",
                                    f.data_name))
                  : "";
     }},
    {Known::run, "--val-every --val-steps --keep-best", "data without a part for validation",
     "--val-data gives one",
     [](F f, R rule) {
       return f.has_data && !f.can_validate && f.o.evaluation.val_every > 0
                  ? idle(f, rule,
                         fmt::format("is for validation, for which {} has no data; give --val-data",
                                     f.data_name))
                  : "";
     }},

    // Memory.
    {Known::run, "--stream-chunks", "the CPU without --state-home",
     "no state is on its way; the size of a chunk counts nevertheless",
     [](F f, R rule) {
       return !f.gpu && f.o.memory.state_home.empty() && f.o.memory.staging_chunks
                  ? idle(f, rule,
                         "has a number of chunks for state on its way to a GPU or, with "
                         "--state-home, to a disk")
                  : "";
     }},
    {Known::machine, "--placement", "--optimizer", "Adafactor's state is small",
     [](F f, R) {
       return misplaced(f, offloads(f) && uses(f, OptimizerKind::adafactor),
                        "with --optimizer adafactor no state can be in host memory; its state is "
                        "small");
     }},
    {Known::machine, "--placement", "the CPU", "all is in host memory; state may be on a disk",
     [](F f, R) {
       const bool state_alone =
           f.placement.count(Residency::device) + f.placement.count(Residency::streamed) ==
           (f.model ? f.model->n_layer : 0);
       return misplaced(
           f, !f.gpu && offloads(f) && (f.o.memory.state_home.empty() || !state_alone),
           fmt::format(
               "this run computes on the CPU, where all is in host memory{}",
               asks(f, Residency::streamed) ? "; with --state-home state may be on a disk" : ""));
     }},
    {Known::machine, "--placement", "a GPU whose copies were not measured",
     "a plan needs their rate",
     [](F f, R) {
       return misplaced(f, f.gpu && offloads(f) && !f.copies_fast,
                        "how fast this GPU copies from and to host memory is not known; measure it "
                        "with plan --save-probe");
     }},
    {Known::machine, "--placement", "--state-home",
     "the CPU updates all state that leaves a GPU's memory",
     [](F f, R) {
       return misplaced(f,
                        f.gpu && !f.o.memory.state_home.empty() &&
                            (asks(f, Residency::streamed) || asks(f, Residency::speculative)),
                        "with --state-home the CPU updates all state that leaves the GPU; use "
                        "offload-optimizer");
     }},
    {Known::machine, "--placement", "--optimizer", "Muon updates on the GPU alone",
     [](F f, R) {
       return misplaced(f, uses(f, OptimizerKind::muon) && asks(f, Residency::cpu),
                        "--optimizer muon updates on the GPU alone; use offload-state");
     }},
    {Known::machine, "--placement", "several ranks or a pipeline",
     "speculative updates begin before gradients are complete",
     [](F f, R) {
       return misplaced(f, among_ranks(f) && asks(f, Residency::speculative),
                        "among several ranks and in a pipeline gradients are complete after the "
                        "backward pass alone; use offload-state");
     }},
    {Known::machine, "--placement", "--pp --pipeline", "offload-all has all blocks on one rank",
     [](F f, R) {
       return misplaced(f,
                        asks(f, Residency::host) &&
                            (f.o.parallel.pp > 1 || (f.o.parallel.pipeline && !layer_major(f))),
                        "offload-all has all blocks on one rank, which serves all micro-batches "
                        "block by block; leave out --pp and --pipeline");
     }},
    {Known::machine, "--placement", "--zero", "with offload-all each rank updates all weights",
     [](F f, R) {
       return misplaced(
           f, asks(f, Residency::host) && f.o.parallel.divides_state(),
           fmt::format("each rank updates all weights; leave out --zero {}", f.o.parallel.zero));
     }},
    {Known::machine, "--placement", "--optimizer",
     "with offload-all the CPU updates, which has AdamW and SGD",
     [](F f, R) {
       return misplaced(
           f, asks(f, Residency::host) && takes_whole_tensors(f.o.optimizer.kind),
           fmt::format("--optimizer {} updates on the GPU alone; use adamw", optimizer(f)));
     }},
    {Known::machine, "--placement", "--lora-rank --adapter",
     "weights that are not trained are on the GPU",
     [](F f, R) {
       return misplaced(f, asks(f, Residency::host) && f.model->lora.rank > 0,
                        "weights that are not trained stay on the GPU; leave out the adapters or "
                        "offload-all");
     }},
    {Known::machine, "--placement", "--placement", "beside offload-all blocks are resident",
     [](F f, R) {
       return misplaced(f,
                        asks(f, Residency::host) && f.placement.count(Residency::device) +
                                                            f.placement.count(Residency::host) <
                                                        f.model->n_layer,
                        "beside blocks that are offload-all the others are resident");
     }},
    {Known::machine, "--placement", "--cuda-graph", "block+host copies within a pass",
     [](F f, R) {
       return misplaced(f, inputs_on_host(f) && f.o.machine.cuda_graph,
                        "with --cuda-graph inputs stay on the GPU; use block");
     }},
    {Known::machine, "--placement", "--pp --pipeline", "stages stash their inputs: --stash input:0",
     [](F f, R) {
       return misplaced(f, inputs_on_host(f) && f.o.parallel.pipelined(),
                        "in a pipeline inputs are in host memory by --stash input:SIZE");
     }},
    {Known::machine, "--placement", "the CPU", "block+host copies from a GPU",
     [](F f, R) {
       return misplaced(f, inputs_on_host(f) && !f.gpu,
                        "this run computes on the CPU, where all is in host memory; use block");
     }},
    {Known::machine, "--placement", "a GPU whose copies were not measured",
     "a plan needs their rate",
     [](F f, R) {
       return misplaced(f, inputs_on_host(f) && !f.copies_fast,
                        "how fast this GPU copies from and to host memory could not be measured; "
                        "use block");
     }},

    // CUDA graphs.
    {Known::run, "--cuda-graph", "the CPU", "a graph is a GPU's",
     [](F f, R) {
       return when(f.o.machine.cuda_graph && !f.gpu,
                   "--cuda-graph is for a GPU, and this run computes on the CPU; leave it out");
     }},
    {Known::run, "--cuda-graph", "--dropout", "a graph draws the same numbers in every step",
     [](F f, R) {
       const double most = std::max({f.dropout.residual, f.dropout.attention, f.dropout.embedding});
       return when(
           f.o.machine.cuda_graph && most > 0,
           fmt::format(
               "--cuda-graph would draw the same numbers in every step, and --dropout is {}; "
               "leave it out",
               most));
     }},
    {Known::run, "--cuda-graph", "data of pairs", "batches have unequal numbers of targets",
     [](F f, R) {
       return when(f.o.machine.cuda_graph && f.pairs,
                   "--cuda-graph divides each batch by the same number of targets, and in batches "
                   "of pairs it differs; leave it out");
     }},
    {Known::machine, "--cuda-graph", "--placement", "state is copied within a step",
     [](F f, R) {
       return when(
           f.o.machine.cuda_graph && offloads(f),
           fmt::format(
               "--cuda-graph needs all state on the GPU, and --placement is {}; leave one of "
               "them out",
               f.o.memory.placement));
     }},
    {Known::run, "--gpus", "--placement", "updates on CPUs and offloaded weights are not tried",
     [](F f, R) -> std::string {
       if (f.o.planning.gpus == 0) return "";
       for (const Residency one : {Residency::speculative, Residency::cpu, Residency::host})
         if (asks(f, one))
           return fmt::format(
               "--gpus does not try {}, which --placement {} has; plan it with --dp "
               "and --tp",
               name_of(one), f.o.memory.placement);
       return "";
     }},
};

}  // namespace

std::span<const Rule> run_rules() {
  return of_runs;
}

}  // namespace sluice
