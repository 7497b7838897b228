#include <array>

#include "apps/plan/memory_plan.h"
#include "apps/train/training.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/training/training.h"

// A plan counts on `meta` exactly the bytes that the arenas of the real run count: at one time
// (peak), for what purpose, and up to which address (what the device must back).

namespace sluice::test::plan_test {
namespace {

/// Sizes that kernels like, and odd ones whose matrices are large (the second) or small (the
/// third).
const DecoderConfig even(std::int64_t layers) {
  return {.n_layer = layers, .n_head = 2, .n_embd = 64, .vocab_size = 64, .n_positions = 16};
}
const DecoderConfig odd(std::int64_t layers) {
  return {.n_layer = layers,
          .n_head = 3,
          .n_embd = 66,
          .n_inner = 71,
          .vocab_size = 101,
          .n_positions = 13};
}
const DecoderConfig tiny(std::int64_t layers) {
  return {.n_layer = layers,
          .n_head = 3,
          .n_embd = 15,
          .n_inner = 23,
          .vocab_size = 37,
          .n_positions = 11};
}

const DecoderConfig with_context(DecoderConfig config, std::int64_t positions) {
  config.n_positions = positions;
  return config;
}

struct PlanCase {
  DecoderConfig config;
  DType dtype;
  StateLayout layout;
  std::int64_t batch, micro_batch;
  const char* recompute;
  std::int64_t resident, chunk;
  int staging;
  std::int64_t validation;  ///< tokens of the validation data; 0: none
  std::int64_t sample;      ///< tokens
  double dropout = 0;
  const char* optimizer = "adamw";
  std::int64_t seq_len = 0;      ///< 0: the context, or one less
  std::int64_t cpu = 0;          ///< blocks that the CPU updates
  std::int64_t speculative = 0;  ///< blocks that are updated under the backward pass
  std::int64_t host = 0;         ///< blocks whose weights rest in host memory, in a layer-major run
  bool tables = false;           ///< the CPU updates the tables
};

constexpr auto f32 = DType::f32, bf16 = DType::bf16, f16 = DType::f16;
constexpr auto whole = StateLayout::fp32, split = StateLayout::split;
constexpr std::int64_t all = 99, usual = std::int64_t{4} << 20;

/// What the short form runs on the emulated GPU, which is slow: every kind of numbers, optimizer
/// and place of state and inputs.
const PlanCase few_cases[] = {
    {odd(2), f32, whole, 3, 3, "gelu", all, 1000, 4, 50, 0},
    {odd(2), f32, whole, 2, 1, "none", all, usual, 4, 30, 3, 0, "sgd"},
    {with_context(tiny(2), 64), f32, whole, 1, 1, "block", all, usual, 4, 0, 3, 0, "adamw", 2},
    {with_context(even(1), 64), bf16, split, 1, 1, "none", 0, 3000, 2, 0, 70, 0, "adamw", 2},
    {even(2), f32, whole, 4, 2, "gelu", 1, usual, 1, 40, 9},
    {odd(3), f16, whole, 2, 1, "block", 0, 10, 2, 14, 2},
    {even(3), f32, whole, 2, 1, "gelu", 1, 3000, 2, 0, 0, 0, "sgd"},
    {odd(4), f32, whole, 6, 3, "block+host*2,gelu", 0, usual, 4, 40, 8},
    {even(3), bf16, whole, 2, 1, "block+host", 1, usual, 4, 0, 12, 0, "adamw", 0, 2},
    {odd(3), f16, StateLayout::int8, 2, 2, "block", 0, 777, 1, 30, 5, 0, "adamw", 0, 1},
    {even(3), f32, whole, 2, 2, "block", 0, usual, 4, 0, 12, 0, "adamw", 0, 0, 3},
    {odd(4), bf16, StateLayout::bf16m, 6, 3, "none", 0, 2000, 3, 0, 0, 0.1, "adamw", 0, 1, 1},
};
const PlanCase more_cases[] = {
    // State on the device; the CPU runs these too.
    {even(1), f32, whole, 1, 1, "none", all, usual, 4, 0, 0},
    {even(2), f32, whole, 4, 2, "none", all, usual, 4, 40, 0},
    {even(3), f32, whole, 4, 4, "block", all, usual, 4, 40, 5},
    {even(4), f32, whole, 2, 1, "block*1,gelu+ln*2,none", all, usual, 4, 200, 40},
    {even(4), bf16, whole, 6, 3, "gelu", all, usual, 4, 0, 0, 0.1},
    {even(4), bf16, split, 6, 2, "gelu+ln", all, usual, 4, 300, 30},
    {even(3), bf16, split, 8, 1, "gelu*2,none", all, 3000, 4, 0, 12},
    {even(2), bf16, whole, 2, 2, "none*1,block", all, usual, 4, 17, 100, 0.3},
    {odd(1), f32, whole, 3, 1, "none", all, usual, 4, 0, 7},
    {odd(3), bf16, split, 5, 1, "block*2,gelu", all, 777, 4, 0, 13},
    {odd(4), bf16, whole, 5, 5, "gelu+ln", all, usual, 4, 60, 14, 0.2},
    {tiny(1), f32, whole, 7, 7, "none", all, usual, 4, 30, 0},
    {tiny(2), f32, whole, 6, 3, "block", all, usual, 4, 12, 6},
    {tiny(3), bf16, split, 6, 1, "gelu", all, usual, 4, 0, 25},
    {tiny(4), bf16, whole, 4, 2, "block*3,none", all, usual, 4, 100, 100},
    {even(2), bf16, whole, 2, 1, "gelu+ln", all, usual, 4, 0, 0, 0, "sgd"},
    // Short sequences in a long context: what a sample takes decides, at its beginning or once its
    // text is cut.
    {with_context(tiny(2), 64), f32, whole, 1, 1, "block", all, usual, 4, 9, 70, 0, "adamw", 2},
    {with_context(tiny(2), 64), f32, whole, 1, 1, "block", all, usual, 4, 9, 64, 0, "adamw", 2},
    {with_context(tiny(2), 64), f32, whole, 1, 1, "block", all, usual, 4, 9, 65, 0, "adamw", 2},
    // State on the host.
    {even(1), f32, whole, 1, 1, "none", 0, usual, 4, 0, 0},
    {even(3), f32, whole, 2, 1, "block", 0, 3000, 3, 0, 40},
    {even(4), f32, whole, 4, 4, "block*2,gelu", 2, 5000, 2, 70, 0, 0.1},
    {even(4), bf16, whole, 2, 1, "gelu+ln", 0, usual, 4, 0, 0},
    {even(3), bf16, split, 4, 2, "gelu+ln*1,none", 0, usual, 2, 100, 20},
    {even(3), bf16, split, 4, 1, "none", 1, 1600, 64, 17, 33},
    {even(4), bf16, split, 8, 8, "block", 3, 4096, 1, 0, 0, 0.4},
    {even(3), f16, whole, 2, 1, "gelu", 0, 2048, 2, 40, 4},
    {even(2), f16, whole, 4, 2, "none", all, usual, 4, 0, 50},
    {odd(2), f32, whole, 3, 1, "none", 1, 700, 3, 0, 0},
    {odd(3), bf16, split, 2, 2, "block*1,none", 0, usual, 4, 40, 8},
    {odd(4), bf16, whole, 6, 3, "gelu+ln", 2, 2000, 5, 0, 30},
    {tiny(2), f32, whole, 2, 1, "gelu", 0, usual, 4, 0, 0},
    {even(3), bf16, whole, 2, 1, "none", 0, 3000, 2, 40, 9, 0, "sgd"},
    // Inputs of blocks too.
    {even(4), bf16, split, 4, 1, "block+host", all, usual, 4, 0, 0},
    {even(4), bf16, split, 8, 4, "block+host*3,block", 1, 3000, 2, 100, 20, 0.2},
    {tiny(4), f16, whole, 2, 2, "block*1,block+host*2,none", all, usual, 4, 0, 25},
    // The CPU updates some blocks, all that are on the host, or all that there are.
    {even(4), bf16, split, 4, 1, "gelu", 1, 3000, 2, 40, 0, 0, "adamw", 0, 2},
    {odd(4), f32, whole, 6, 3, "none", 0, 2000, 3, 0, 0, 0.1, "adamw", 0, 4},
    // Updates begin under the backward pass: some, all, those below the CPU's.
    {even(4), bf16, split, 4, 1, "gelu", 1, 3000, 2, 40, 0, 0, "adamw", 0, 0, 2},
    {odd(3), f16, whole, 2, 1, "block+host", 1, 777, 1, 30, 5, 0, "adamw", 0, 0, 1},
};

std::vector<PlanCase> all_cases() {
  std::vector<PlanCase> cases(std::begin(few_cases), std::end(few_cases));
  cases.insert(cases.end(), std::begin(more_cases), std::end(more_cases));
  return cases;
}

/// A case as options, setup and choice.
struct Planned {
  TrainConfig options;
  RunSetup setup;
  MemoryChoice choice;
  TrainingTask task;

  Planned(const PlanCase& c, DeviceKind kind) {
    task = {.config = c.config,
            .dtype = c.dtype,
            .batch_size = c.batch,
            .seq_len = c.seq_len > 0 ? c.seq_len : c.config.n_positions - c.batch % 2,
            .grad_clip = 1,
            .dropout = c.dropout,
            .optimizer = c.optimizer};
    if (c.host > 0) {
      task.pipeline = "layer-major";
      task.stash = "auto";
    }
    options = task.options();
    options.evaluation.sample_tokens = c.sample;
    choice =
        offloaded(recomputing(task.resident(c.layout, c.micro_batch), c.recompute),
                  std::min(c.resident, c.config.n_layer), c.chunk, c.staging, c.cpu, c.speculative);
    choice = with_weights_offloaded(choice, c.host, c.tables);
    setup = task.setup(kind, choice);
    if (c.validation > 0)
      setup.data.val = tokens_in_memory(random_ids(static_cast<std::size_t>(c.validation),
                                                   static_cast<std::int32_t>(c.config.vocab_size)));
  }

  /// Updates, each followed by what the program does between two: a validation, a sample.
  void run(const DevicePtr& device, const HostMemory& host) const {
    Training training(options, setup, choice, device, host,
                      setup.pipeline ? planned_ranks({}, 0) : single_rank());
    training.space.initialize(1);
    // A leak in the third would show on the CPU, which is faster than the emulated GPU.
    const int steps = setup.device == DeviceKind::cpu ? 3 : 2;
    for (int step = 0; step < steps; ++step) {
      training.trainer.step(step, task.batch(step));
      if (setup.data.val)
        training.trainer.evaluate(*setup.data.val, validation_batches(options, setup));
      if (options.evaluation.sample_tokens > 0)
        training.sample(sample_prompt(options, setup),
                        {.max_tokens = options.evaluation.sample_tokens});
    }
    training.optimizer->synchronize();
  }
};

std::unique_ptr<Runtime> runtime_of(DeviceKind kind) {
  return kind == DeviceKind::cuda ? gpu_runtime(1) : make_cpu_runtime();
}

DevicePtr open(DeviceKind kind, std::size_t bytes) {
  return std::make_shared<DeviceContext>(runtime_of(kind), bytes);
}

void check_case(const PlanCase& c, DeviceKind kind) {
  CAPTURE(static_cast<int>(kind), c.config.n_embd, c.config.n_layer, name_of(c.dtype),
          name_of(c.layout), c.batch, c.micro_batch, c.recompute, c.resident, c.chunk, c.staging,
          c.validation, c.sample, c.optimizer, c.cpu, c.speculative, c.host, c.tables);
  const Planned planned(c, kind);
  const std::size_t workspace = runtime_of(kind)->workspace_bytes();
  const MemoryPlan plan = plan_memory(planned.options, planned.setup, planned.choice, workspace);
  CHECK(plan.peak <= plan.high_water);
  std::size_t sum = 0;
  for (const std::size_t bytes : plan.by_use)
    sum += bytes;
  CHECK(sum == plan.peak);
  const bool bulk = c.config.n_embd * c.config.n_embd >= SpaceLayout::bulk_threshold;
  const bool rests = planned.choice.offloads_inputs() || c.host > 0;
  CHECK((plan.host > 0) == ((planned.choice.offloads_state() && bulk) || rests));

  // Exactly what was planned is enough...
  const DevicePtr device = open(kind, plan.high_water);
  CHECK((plan.host > plan.pinned) == (c.cpu + c.host > 0 && bulk));
  const std::size_t ordinary = plan.host - plan.pinned;
  const HostMemory host = make_host_memory(device, plan.pinned, ordinary);
  planned.run(device, host);
  CHECK(device->arena().peak() == plan.peak);
  CHECK(device->arena().high_water() == plan.high_water);
  CHECK(device->arena().peak_by_use() == plan.by_use);
  if (plan.pinned > 0) CHECK(host.pinned->arena().high_water() == plan.pinned);
  if (ordinary > 0) CHECK(host.ordinary->arena().high_water() == ordinary);

  // ...and less is not.
  const DevicePtr small = open(kind, plan.high_water - Arena::alignment);
  const HostMemory same = make_host_memory(small, plan.pinned, ordinary);
  CHECK(error_message([&] { planned.run(small, same); }).find("out of memory") !=
        std::string::npos);
  for (const bool of_pinned : {true, false}) {
    if ((of_pinned ? plan.pinned : ordinary) <= Arena::alignment) continue;
    const DevicePtr again = open(kind, plan.high_water);
    const HostMemory less =
        make_host_memory(again, plan.pinned - (of_pinned ? Arena::alignment : 0),
                         ordinary - (of_pinned ? 0 : Arena::alignment));
    CHECK(error_message([&] { planned.run(again, less); }).find("out of memory") !=
          std::string::npos);
  }
}

}  // namespace

TEST_CASE("on the CPU a run takes the bytes that were planned", "[plan]") {
  int count = 0;
  for (const PlanCase& c : all_cases()) {
    if (c.dtype == f16) continue;
    check_case(c, DeviceKind::cpu);
    ++count;
  }
  CHECK(count >= 30);
}

TEST_CASE("on the GPU a run takes the bytes that were planned", "[plan]") {
  if (!have_gpu()) return;
  const auto cases =
      long_form() ? all_cases() : std::vector(std::begin(few_cases), std::end(few_cases));
  for (const PlanCase& c : cases)
    check_case(c, DeviceKind::cuda);
  CHECK(cases.size() >= by_form<std::size_t>(10, 30));
}

TEST_CASE("weights that rest in host memory take the bytes that were planned", "[plan]") {
  if (!have_gpu()) return;
  struct Form {
    DType dtype;
    StateLayout layout;
  };
  constexpr Form forms[] = {{f32, whole}, {bf16, split}, {bf16, whole}, {f16, whole}};
  constexpr std::array recompute{"none", "block", "gelu+ln*2,none"};
  std::size_t count = 0;
  for (const std::int64_t host : {1, 2, 4})
    for (std::int64_t form = 0; form < 4; ++form)
      for (std::int64_t mode = 0; mode < 3; ++mode)
        for (const bool round : {true, false})
          for (const bool between : {false, true}) {
            if (!in_form(12, {host, form, 2 * mode, 3 * round, 6 * between})) continue;
            const bool tables = (host + form + between) % 2 == 0;
            check_case({.config = round ? even(4) : odd(4),
                        .dtype = forms[form].dtype,
                        .layout = forms[form].layout,
                        .batch = 4,
                        .micro_batch = 1 + mode % 2,
                        .recompute = recompute[static_cast<std::size_t>(mode)],
                        .resident = 4 - host,
                        .chunk = tables ? 3000 : usual,
                        .staging = 4,
                        .validation = between ? 70 : 0,
                        .sample = between ? 5 : 0,
                        .host = host,
                        .tables = tables},
                       DeviceKind::cuda);
            ++count;
          }
  CHECK(count >= by_form<std::size_t>(8, 60));
}

TEST_CASE("what is held between updates is part of the plan", "[plan]") {
  for (const PlanCase& c : all_cases()) {
    const Planned planned(c, DeviceKind::cpu);
    const MemoryPlan state = plan_state(planned.options, planned.setup, planned.choice, 4096);
    const MemoryPlan run = plan_memory(planned.options, planned.setup, planned.choice, 4096);
    CHECK(state.high_water < run.high_water);
    // Activations in host memory during a pass do not count as state.
    CHECK((state.host < run.host) == planned.choice.offloads_inputs());
    const auto of = [](const MemoryPlan& plan, MemoryUse use) {
      return plan.by_use[static_cast<std::size_t>(use)];
    };
    for (const MemoryUse use : {MemoryUse::weights, MemoryUse::gradients, MemoryUse::state,
                                MemoryUse::staging, MemoryUse::workspace})
      CHECK(of(state, use) == of(run, use));
    CHECK(of(run, MemoryUse::workspace) == 4096);
    if (run.host == 0) continue;
    // One place takes what another does.
    MemoryChoice one = planned.choice;
    one.staging.places = 1;
    const MemoryPlan least = plan_state(planned.options, planned.setup, one, 4096);
    CHECK(of(state, MemoryUse::staging) ==
          static_cast<std::size_t>(c.staging) * of(least, MemoryUse::staging));
    // The CPU's staging buffers are pinned memory too.
    CHECK((least.host == state.host) == (c.staging == 1 || state.host == state.pinned));
    CHECK(state.host - least.host == state.pinned - least.pinned);
  }
}

TEST_CASE("what decides a plan is counted, whatever it is", "[plan]") {
  const auto peak = [](std::int64_t sample, std::int64_t micro_batch) {
    PlanCase c{
        with_context(tiny(2), 64), f32, whole, 4, micro_batch, "block", all, usual, 4, 0, sample};
    c.seq_len = 2;
    const Planned planned(c, DeviceKind::cpu);
    return plan_memory(planned.options, planned.setup, planned.choice, 0).peak;
  };
  CHECK(peak(3, 1) == peak(0, 1));
  CHECK(peak(60, 1) > peak(3, 1));  // keys and values of a longer text
  CHECK(peak(70, 1) > peak(60, 1));
  CHECK(peak(0, 4) > peak(0, 1));
}

}  // namespace sluice::test::plan_test
