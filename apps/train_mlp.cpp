#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/command_line.h"
#include "apps/cli/progress.h"
#include "apps/cli/run_program.h"
#include "apps/output/run_folder.h"
#include "apps/output/run_log.h"
#include "engine/autograd.h"
#include "engine/rng.h"
#include "kernels/cpu/parallel_for.h"
#include "models/mlp/mlp.h"
#include "optim/make_optimizer.h"
#include "optim/schedule.h"
#include "parallel/comm/communicator_group.h"
#include "parallel/comm/world.h"

// The smallest training that several ranks divide. An MLP learns which arm of a spiral a point lies
// on. Every rank makes the same points, has its shard of every pair of matrices and makes the same
// steps.

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::int64_t layers = 2, width = 32, hidden = 64, classes = 4;
  std::int64_t steps = 500, batch_size = 256, threads = 0;
  std::optional<std::int64_t> tp;
  double lr = 0.005;
  std::uint64_t seed = 1;
  std::string precision = "fp32", output;

  DType dtype() const { return precision == "fp64" ? DType::f64 : DType::f32; }
};

void declare(CommandLine& line, Options& o) {
  line.group("Model");
  line.add("--layers", o.layers, "Layers: linear, ReLU, linear, LayerNorm", 1, 1 << 10);
  line.add("--width", o.width, "Width between layers", 1, 1 << 16);
  line.add("--hidden", o.hidden, "Width within a layer, a multiple of the ranks", 1, 1 << 16);
  line.add("--classes", o.classes, "Arms of the spiral, at least as many as ranks", 2, 1 << 10);
  line.group("Training");
  line.add("--steps", o.steps, "Updates", 1);
  line.add("--batch-size", o.batch_size, "Points of an update", 1, 1 << 20);
  line.add("--lr", o.lr, "Learning rate at the start; it falls to 0 along half a cosine", 0, 1e3);
  line.add("--seed", o.seed, "Of the weights and the points");
  line.group("Machine");
  line.add("--tp", o.tp, "Ranks that divide the matrices; default: all that were started", 1);
  line.add_choice("--precision", o.precision, "Arithmetic", {"fp32", "fp64"});
  line.add("--threads", o.threads, "CPU threads of a rank; 0: its share of the cores", 0, 4096);
  line.add("--output", o.output, "Folder for log.jsonl; default: runs/<time>");
}

/// Points in the plane and the arms they lie on.
struct Points {
  /// [count, 3]: two coordinates and a 1. Biases start at 0, so without the 1 the first LayerNorm
  /// would remove the distance from the middle.
  Tensor x;
  std::vector<std::int32_t> arms;

  Tensor targets() const {
    return Tensor::from_tokens(x.device(), {static_cast<std::int64_t>(arms.size())}, arms);
  }
};

/// Returns points [first, first + count) of an endless sequence. The arms make half a turn from the
/// middle to the rim and fill half of the plane.
Points spiral(const DevicePtr& device, const Options& o, std::string_view sequence,
              std::int64_t first, std::int64_t count) {
  const std::uint64_t key = random_key(o.seed, sequence);
  std::vector<double> x;
  std::vector<std::int32_t> arms;
  for (std::int64_t i = first; i < first + count; ++i) {
    const auto number = static_cast<std::uint64_t>(i);
    const double radius = 0.1 + 0.9 * uniform(key, 2 * number);
    const double place = static_cast<double>(i % o.classes) + 0.5 * uniform(key, 2 * number + 1);
    const double angle =
        2 * 3.14159265358979323846 * (0.5 * radius + place / static_cast<double>(o.classes));
    x.insert(x.end(), {radius * std::cos(angle), radius * std::sin(angle), 1});
    arms.push_back(static_cast<std::int32_t>(i % o.classes));
  }
  return {Tensor::from_host(device, {count, 3}, o.dtype(), x), std::move(arms)};
}

/// Returns the fraction of points whose arm the model finds.
double accuracy(const Mlp& model, const Points& points) {
  const std::vector<std::int32_t> found = model.classify(points.x);
  std::size_t right = 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    right += found[i] == points.arms[i] ? 1 : 0;
  return static_cast<double>(right) / static_cast<double>(found.size());
}

void require_ranks(const Options& o, int size) {
  if (!o.tp || *o.tp == size) return;
  if (size == 1)
    fail(fmt::format("--tp {0} needs {0} ranks, and this process was started alone: mpirun -n {0} "
                     "train_mlp ...",
                     *o.tp),
         ErrorKind::usage);
  fail(fmt::format("--tp {0} needs {0} ranks, but {1} were started; give --tp {1} or mpirun -n {0}",
                   *o.tp, size),
       ErrorKind::usage);
}

void use_cores(const Options& o, int ranks) {
  cpu::set_threads(static_cast<int>(o.threads));
  if (o.threads == 0) cpu::set_threads(std::max(1, cpu::threads() / ranks));
}

/// Opens the log of the run, on rank 0.
std::optional<RunLog> open_log(const Options& o, int ranks, RunFolder& folder) {
  const fs::path file = folder.path() / "log.jsonl";
  if (fs::exists(file))
    fail(fmt::format("--output {}: there is a log already; give another folder",
                     folder.path().string()),
         ErrorKind::usage);
  folder.begin();
  std::optional<RunLog> log(file);
  log->write("start", {{"version", 1},
                       {"program", "train_mlp"},
                       {"steps", o.steps},
                       {"layers", o.layers},
                       {"width", o.width},
                       {"hidden", o.hidden},
                       {"classes", o.classes},
                       {"batch_size", o.batch_size},
                       {"lr", o.lr},
                       {"seed", o.seed},
                       {"precision", o.precision},
                       {"ranks", ranks},
                       {"threads", cpu::threads()}});
  say(fmt::format("model        {} layers of width {}, {} within them; {} classes\n", o.layers,
                  o.width, o.hidden, o.classes));
  say(fmt::format("ranks        {}, {} of the hidden {} for each\n", ranks, o.hidden / ranks,
                  o.hidden));
  say(fmt::format("output       {}\n", folder.path().string()));
  return log;
}

void train(const Options& o, const World& world) {
  std::signal(SIGPIPE, SIG_IGN);  // see say() in progress.h
  require_ranks(o, world.size());
  use_cores(o, world.local_size());
  const auto ranks = world.communicator(nullptr, {});
  CommunicatorGroup group(*ranks, true);
  TensorShare share{.rank = world.rank(), .size = world.size()};
  if (share.size > 1) share.group = &group;

  const DevicePtr device = make_cpu_device();
  Mlp model(
      {.in = 3, .width = o.width, .layers = o.layers, .classes = o.classes, .hidden = o.hidden},
      share);
  ParameterSpace space(model.parameters(), device, o.dtype(), ParameterSpace::Use::training);
  space.initialize(o.seed);
  const auto optimizer = make_sgd(space, {.momentum = 0.9});
  const RateSchedule rate{.kind = ScheduleKind::cosine, .rate = o.lr, .updates = o.steps};
  std::optional<RunFolder> folder;
  std::optional<RunLog> log;
  if (world.rank() == 0) {
    folder.emplace(o.output, "train_mlp");
    log = open_log(o, world.size(), *folder);
  }

  const Points test = spiral(device, o, "test", 0, 1000);
  for (std::int64_t step = 1; step <= o.steps; ++step) {
    const Points points = spiral(device, o, "train", (step - 1) * o.batch_size, o.batch_size);
    space.forget_gradients();
    const Tensor loss =
        model.loss(points.x, points.targets(), {.scale = 1.0 / static_cast<double>(o.batch_size)})
            .loss;
    backward(loss);
    optimizer->step(rate.at(step - 1));
    nlohmann::ordered_json line{{"step", step}, {"loss", loss.item()}, {"lr", rate.at(step - 1)}};
    if (step % 50 == 0 || step == o.steps) {
      const double right = accuracy(model, test);
      line["accuracy"] = right;
      say(fmt::format("step {:>5}/{} | loss {:.6f} | {:.1f} % right\n", step, o.steps, loss.item(),
                      100 * right));
    }
    if (log) log->write("train", line);
    if (!std::isfinite(loss.item()))
      fail(fmt::format("the loss of step {} is not finite; use a smaller --lr", step),
           ErrorKind::numerical);
  }
  if (log) log->write("end", {{"step", o.steps}});
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::run_ranks("train_mlp", [&](const sluice::World& world) {
    sluice::Options options;
    sluice::CommandLine line("train_mlp",
                             "Trains a small MLP to tell the arms of a spiral apart. Ranks that "
                             "mpirun starts divide its matrices.");
    sluice::declare(line, options);
    if (line.parse(argc, argv)) sluice::train(options, world);
  });
}
