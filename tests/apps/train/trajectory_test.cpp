#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/train/trainer.h"
#include "optim/make_optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"
#include "tests/support/training/single_rank.h"

namespace sluice::test::trajectory_test {
namespace {

/// A training run as a fixture describes it.
struct Run {
  DevicePtr device;
  TestModel loaded;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<TrainStep> steps;

  /// `muon`: the fixture's training by Muon; none: that by AdamW.
  Run(const Fixture& fixture, DeviceKind kind, DType dtype, std::int64_t micro_batch,
      bool copy_stream = true, std::int64_t max_steps = 1000, const Json& muon = {})
      : device(open_device(kind)),
        loaded(open_model(fixture.model(), device, dtype, ParameterSpace::Use::training, {},
                          {.whole_tensors = !muon.is_null()})) {
    const Json& hyper = fixture.json().at("hyper");
    const AdamWOptions adamw{.beta1 = hyper.at("beta1"),
                             .beta2 = hyper.at("beta2"),
                             .epsilon = hyper.at("eps"),
                             .weight_decay = hyper.at("weight_decay")};
    optimizer =
        muon.is_null()
            ? make_adamw(*loaded.space, adamw)
            : make_muon(*loaded.space,
                        {.momentum = muon.at("momentum"),
                         .weight_decay = adamw.weight_decay,
                         .scale = muon.at("scale") == "rms" ? MuonScale::rms : MuonScale::shape,
                         .rate_factor = muon.at("lr").get<double>() / hyper.at("lr").get<double>(),
                         .adamw = adamw});
    const std::int64_t batch = fixture.hyper("batch"), seq_len = fixture.hyper("seq");
    const double final_rate = hyper.at("min_lr");
    const RateSchedule schedule{
        .kind = final_rate > 0 ? ScheduleKind::cosine : ScheduleKind::constant,
        .rate = hyper.at("lr"),
        .final_rate = final_rate,
        .warmup = fixture.hyper("warmup"),
        .updates = fixture.hyper("steps")};
    const auto tokens = open_token_file(fixture.token_file(), loaded.model->config().vocab_size);
    const SequenceSampler sampler(SequenceSampler::Order::sequential, 0, tokens->size(), batch,
                                  seq_len);
    BatchLoader loader(*tokens, sampler, batch, seq_len);
    SingleRank rank(*loaded.space, *optimizer);
    Trainer trainer(*loaded.model, *loaded.space, rank.parallel, schedule,
                    {.batch_size = batch,
                     .micro_batch = micro_batch,
                     .seq_len = seq_len,
                     .grad_clip = hyper.at(hyper.contains("clip") ? "clip" : "grad_clip"),
                     .loss_scaling = dtype == DType::f16,
                     .copy_stream = copy_stream});
    for (std::int64_t step = 0; step < std::min(schedule.updates, max_steps); ++step)
      steps.push_back(trainer.step(step, loader.batch(step)));
    optimizer->synchronize();
  }
};

/// Elements of a flat buffer that belong to one parameter.
Values elements(const Tensor& flat, const ParameterSpace::Slot& slot) {
  return flat.slice(slot.offset, slot.shape).to_host();
}

/// Returns true if element `i` is part of a key's bias: its gradient is zero in exact arithmetic,
/// so that Adam makes real steps out of rounding noise there.
bool is_noise(const std::string& name, std::size_t i, std::size_t size) {
  return name.ends_with("attn.c_attn.bias") && i >= size / 3 && i < 2 * size / 3;
}

/// Compares samples, and where all elements count, norm and sum, with a bound relative to the
/// parameter's norm.
void compare(const std::string& what, const ParameterSpace& space, const Tensor& flat,
             const Json& expected, double bound) {
  REQUIRE(expected.size() == space.slots().size());
  for (const auto& slot : space.slots()) {
    INFO(what << " of " << slot.name);
    const Json& reference = expected.at(slot.name);
    const Values values = elements(flat, slot);
    const double scale = reference.at("l2").get<double>();
    const auto size = static_cast<double>(values.size());
    double off = 0;
    std::size_t samples = 0;
    for (const auto& sample : reference.at("samples")) {
      const auto i = sample.at(0).get<std::size_t>();
      if (is_noise(slot.name, i, values.size())) continue;
      off += std::pow(values.at(i) - sample.at(1).get<double>(), 2);
      ++samples;
    }
    REQUIRE(samples > 4);
    // As though all elements were off like the samples.
    CHECK(std::sqrt(off * size / static_cast<double>(samples)) <= bound * scale);
    if (slot.name.ends_with("attn.c_attn.bias") && what == "parameters") continue;
    double square = 0, sum = 0;
    for (const double value : values) {
      square += value * value;
      sum += value;
    }
    CHECK(std::abs(std::sqrt(square) - scale) <= bound * scale);
    CHECK(std::abs(sum - reference.at("sum").get<double>()) <= bound * scale * std::sqrt(size));
  }
}

/// Compares the steps that were made, one at least. `loss_bound` is for the root mean square over
/// the steps, `worst_bound` for any one of them.
void compare_steps(const Run& run, const Json& trajectory, double loss_bound, double worst_bound,
                   double norm_bound) {
  REQUIRE_FALSE(run.steps.empty());
  REQUIRE(trajectory.size() >= run.steps.size());
  double squares = 0;
  for (std::size_t k = 0; k < run.steps.size(); ++k) {
    INFO("step " << k);
    const Json& expected = trajectory.at(k);
    const double off = std::abs(run.steps[k].loss - expected.at("loss").get<double>());
    squares += off * off;
    CHECK(off <= worst_bound);
    CHECK(std::abs(run.steps[k].gradient_norm / expected.at("grad_norm").get<double>() - 1) <=
          norm_bound);
    CHECK(run.steps[k].rate == Approx(expected.at("lr").get<double>()).epsilon(1e-12));
    CHECK(run.steps[k].applied);
  }
  CHECK(std::sqrt(squares / static_cast<double>(run.steps.size())) <= loss_bound);
}

}  // namespace

TEST_CASE("fp32 training follows the reference: losses, norms, rates, weights and both moments") {
  const ThreadCount one(1);
  struct Row {
    const char* name;
    std::int64_t micro_batch;
  };
  const auto [name, micro_batch] =
      GENERATE(Row{"tiny", 4}, Row{"tiny", 1}, Row{"tiny", 2}, Row{"tiny-prefixed", 4},
               Row{"tiny-bf16", 1}, Row{"odd", 2}, Row{"odd", 1});
  const std::string folder = GENERATE(from_range(fixture_folders()));
  const Fixture fixture(folder, name);
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  // The emulated GPU is slow: it has the odd model alone in the short form.
  if (kind != DeviceKind::cpu && micro_batch == 1) return;
  if (kind != DeviceKind::cpu && !long_form() &&
      (name != std::string("odd") || folder != fixture_folders().front()))
    return;
  INFO(folder << "/" << name << ", micro-batch " << micro_batch << " on " << name_of(kind));
  const Run run(fixture, kind, DType::f32, micro_batch);
  const Json& json = fixture.json();
  REQUIRE(run.steps.size() == json.at("trajectory").size());
  compare_steps(run, json.at("trajectory"), 1e-5, 1e-5, 1e-5);
  const auto& space = *run.loaded.space;
  // Rounding alone is 2e-6; the mistakes that these bounds are for begin at 6e-5.
  compare("parameters", space, flat_weights(space), json.at("final_params"), 1e-5);
  compare("first moment", space, flat_state(space, *run.optimizer, 0), json.at("final_exp_avg"),
          1e-5);
  compare("second moment", space, flat_state(space, *run.optimizer, 1), json.at("final_exp_avg_sq"),
          1e-5);
}

TEST_CASE("training by Muon follows the reference in every family", "[muon]") {
  const ThreadCount one(1);
  const std::string name = GENERATE("tiny", "odd", "llama", "qwen2", "qwen3", "gptj", "gpt_neox");
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  const Fixture fixture(fixture_folders().front(), name);
  const bool brief = kind != DeviceKind::cpu && !long_form();
  if (brief && name != "odd" && name != "llama") return;
  const Json& all = fixture.json().at("muon");
  REQUIRE(all.size() == 2);
  for (const Json& muon : all) {
    INFO(name << ", scale " << muon.at("scale") << " on " << name_of(kind));
    const Run run(fixture, kind, DType::f32, fixture.hyper("batch"), true, brief ? 5 : 1000, muon);
    compare_steps(run, muon.at("trajectory"), 2e-5, 5e-5, 1e-4);
    // Elsewhere the reference has the parts of our matrices, or keys have biases.
    if (brief || (name != "tiny" && name != "odd")) continue;
    compare("parameters", *run.loaded.space, flat_weights(*run.loaded.space),
            muon.at("final_params"), 1e-4);
  }
}

TEST_CASE("16-bit training stays as near to the reference as 16 bits can be") {
  const ThreadCount one(1);
  const DType dtype = GENERATE(DType::bf16, DType::f16);
  const std::string name = GENERATE("tiny", "tiny-bf16", "odd");
  const std::string folder = GENERATE(from_range(fixture_folders()));
  const Fixture fixture(folder, name);
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  // The short form has one model on the slow emulated GPU, and some steps of its training.
  const bool brief = kind != DeviceKind::cpu && !long_form();
  if (brief && (name != "tiny" || folder != fixture_folders().front())) return;
  INFO(folder << "/" << name << " in " << name_of(dtype) << " on " << name_of(kind));
  const Run run(fixture, kind, dtype, fixture.hyper("batch"), true, brief ? 7 : 1000);
  const Json& json = fixture.json();
  if (!brief) REQUIRE(run.steps.size() == json.at("trajectory").size());
  // Twice what rounding the inputs of matrix products to bf16 costs. One step of a batch of 46
  // tokens may be off by twice as much, depending on how a processor sums (6.0e-3 with AMX).
  const double finer = dtype == DType::f16 ? 8 : 1;
  compare_steps(run, json.at("trajectory"), 3.6e-3 / finer, 7.2e-3 / finer, 1.8e-2 / finer);
  const auto& space = *run.loaded.space;
  CHECK(space.has_master());
  if (brief) return;
  // Twice the 5e-3 of the reference's own roundings, and half as much again because a few elements
  // stand for all of their tensor.
  compare("parameters", space, flat_weights(space), json.at("final_params"), 1.5e-2);
}

TEST_CASE("one stream and several give the same bits") {
  const ThreadCount one(1);
  // Four micro-batches an update: the two places of BatchUpload are used again.
  const Fixture fixture(fixture_folders().front(), "tiny");
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const auto master = [&](bool copy_stream) {
    return flat_weights(*Run(fixture, kind, dtype, 1, copy_stream, by_form(2, 3)).loaded.space)
        .to_host();
  };
  const Values several = master(true);
  const bool one_stream = several == master(false), again = several == master(true);
  CHECK(one_stream);
  CHECK(again);
}

TEST_CASE("a gradient that is not finite changes nothing and says so") {
  const ThreadCount one(1);
  const auto device = make_cpu_device();
  const auto made = random_model(small_config(), device, DType::f32);
  const auto optimizer = make_adamw(*made.space, {});
  SingleRank rank(*made.space, *optimizer);
  Trainer trainer(*made.model, *made.space, rank.parallel, {.rate = 1e-2},
                  {.micro_batch = 1, .seq_len = 16});
  const Batch batch{{.tokens = random_ids(16, 64, 1), .targets = random_ids(16, 64, 2)}};
  CHECK(trainer.step(0, batch).applied);
  // A weight so large that the loss overflows.
  const auto* slot = made.space->find("ln_f.weight");
  const float huge = 3e38F;
  made.space->write_weights(slot->offset, std::as_bytes(std::span(&huge, 1)));
  const Values before = flat_weights(*made.space).to_host();
  const Values moment = flat_state(*made.space, *optimizer, 0).to_host();
  const TrainStep bad = trainer.step(1, batch);
  CHECK_FALSE(bad.applied);
  CHECK_FALSE(std::isfinite(bad.gradient_norm));
  CHECK(flat_weights(*made.space).to_host() == before);
  CHECK(flat_state(*made.space, *optimizer, 0).to_host() == moment);
  CHECK(optimizer->updates() == 1);
}

TEST_CASE("evaluation is the mean over whole batches, without dropout or change") {
  const ThreadCount one(1);
  const auto device = make_cpu_device();
  const auto made = random_model(small_config(), device, DType::f64);
  const auto optimizer = make_adamw(*made.space, {});
  SingleRank rank(*made.space, *optimizer);
  Trainer trainer(*made.model, *made.space, rank.parallel, {},
                  {.micro_batch = 2,
                   .seq_len = 8,
                   .dropout = {.embedding = 0.5, .attention = 0.5, .residual = 0.5}});
  const auto ids = random_ids(16 * 3 + 9, 64, 1);
  const auto source = tokens_in_memory(ids);
  const auto loss_of = [&](std::size_t start) {
    const auto part = [&](std::size_t from) {
      return Tensor::from_tokens(device, {2, 8}, std::span(ids).subspan(from, 16));
    };
    return made.model->loss(part(start), part(start + 1), {.scale = 1.0 / 16}).loss.item();
  };
  const Values before = flat_weights(*made.space).to_host();
  const double mean = (loss_of(0) + loss_of(16) + loss_of(32)) / 3;
  CHECK(trainer.evaluate(*source, {source->size(), 99, 8, 2}) == Approx(mean).epsilon(1e-12));
  CHECK(trainer.evaluate(*source, {source->size(), 2, 8, 2}) == Approx(loss_of(0)).epsilon(1e-12));
  CHECK(flat_weights(*made.space).to_host() == before);
  // Fewer tokens than a batch: as many rows as there are.
  CHECK(std::isfinite(trainer.evaluate(*tokens_in_memory(std::span(ids).first(9)), 5)));
}

}  // namespace sluice::test::trajectory_test
