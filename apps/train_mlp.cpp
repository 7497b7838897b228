#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "apps/cli/command_line.h"
#include "apps/cli/progress.h"
#include "apps/cli/run_program.h"
#include "apps/output/run_folder.h"
#include "apps/output/run_log.h"
#include "engine/autograd.h"
#include "engine/rng.h"
#include "kernels/base/run.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/elementwise.h"
#include "models/mlp/mlp.h"
#include "optim/make_optimizer.h"
#include "optim/schedule.h"
#include "parallel/comm/communicator_group.h"
#include "parallel/comm/world.h"
#include "parallel/data_parallel/data_partition.h"
#include "parallel/data_parallel/gradient_reducer.h"

// The smallest training that several ranks divide. An MLP learns which arm of a spiral a point lies
// on. Either every rank makes the same points and has its shard of every pair of matrices, or
// (--dp) each has the whole model and a part of the points, and they add up their gradients.

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::int64_t layers = 2, width = 32, hidden = 64, classes = 4;
  std::int64_t steps = 500, batch_size = 256, threads = 0;
  std::int64_t dp = 1, points = 0;
  std::optional<std::int64_t> tp;
  double lr = 0.005;
  std::uint64_t seed = 1;
  std::string precision = "fp32", dp_reduce = "all-reduce", output;

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
  line.add("--points", o.points,
           "Points of the training set, which is divided between replicas; default: new points in "
           "each update, or 4096 with --dp",
           0, 1 << 24);
  line.add("--lr", o.lr, "Learning rate at the start; it falls to 0 along half a cosine", 0, 1e3);
  line.add("--seed", o.seed, "Of the weights and the points");
  line.group("Machine");
  line.add("--tp", o.tp, "Ranks that divide the matrices; default: all that were started", 1);
  line.add("--dp", o.dp, "Replicas: ranks that have the whole model and a part of the points", 1);
  line.add_choice("--dp-reduce", o.dp_reduce,
                  "How replicas add up gradients: in buckets during backward, or by one rank that "
                  "gathers all of them and sends the sums back",
                  {"all-reduce", "gather"});
  line.add_choice("--precision", o.precision, "Arithmetic", {"fp32", "fp64"});
  line.add("--threads", o.threads, "CPU threads of a rank; 0: its share of the cores", 0, 4096);
  line.add_output("--output", o.output, "Folder for log.jsonl; default: runs/<time>",
                  require_run_or_new);
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

/// Returns points of an endless sequence. The arms make half a turn from the middle to the rim and
/// fill half of the plane.
Points spiral(const DevicePtr& device, const Options& o, std::string_view sequence,
              std::span<const std::int64_t> numbers) {
  const std::uint64_t key = random_key(o.seed, sequence);
  std::vector<double> x;
  std::vector<std::int32_t> arms;
  for (const std::int64_t i : numbers) {
    const auto number = static_cast<std::uint64_t>(i);
    const double radius = 0.1 + 0.9 * uniform(key, 2 * number);
    const double place = static_cast<double>(i % o.classes) + 0.5 * uniform(key, 2 * number + 1);
    const double angle =
        2 * 3.14159265358979323846 * (0.5 * radius + place / static_cast<double>(o.classes));
    x.insert(x.end(), {radius * std::cos(angle), radius * std::sin(angle), 1});
    arms.push_back(static_cast<std::int32_t>(i % o.classes));
  }
  const auto count = static_cast<std::int64_t>(numbers.size());
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
  if (o.dp > 1) {
    if (o.tp.value_or(1) > 1)
      fail(fmt::format("--dp {} and --tp {}: ranks are replicas or divide the matrices; give one",
                       o.dp, *o.tp),
           ErrorKind::usage);
    if (o.dp != size)
      fail(fmt::format(
               "--dp {} needs {} ranks, and {} {} started; scripts/launch -n {} train_mlp ...",
               o.dp, o.dp, size, size == 1 ? "was" : "were", o.dp),
           ErrorKind::usage);
    if (o.batch_size % o.dp != 0)
      fail(fmt::format("--batch-size {} is no multiple of --dp {}", o.batch_size, o.dp),
           ErrorKind::usage);
  }
  if (o.dp == 1 && o.dp_reduce != "all-reduce")
    fail(fmt::format("--dp-reduce {} is for replicas; give --dp too", o.dp_reduce),
         ErrorKind::usage);
  if (o.dp > 1 || !o.tp || *o.tp == size) return;
  if (size == 1)
    fail(fmt::format("--tp {0} needs {0} ranks, and this process was started alone: scripts/launch "
                     "-n {0} train_mlp ... (or mpirun -n {0})",
                     *o.tp),
         ErrorKind::usage);
  fail(fmt::format(
           "--tp {0} needs {0} ranks, but {1} were started; give --tp {1} or start {0} (-n {0})",
           *o.tp, size),
       ErrorKind::usage);
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
                       {"dp", o.dp},
                       {"dp_reduce", o.dp_reduce},
                       {"threads", cpu::threads()}});
  say(fmt::format("model        {} layers of width {}, {} within them; {} classes\n", o.layers,
                  o.width, o.hidden, o.classes));
  say(o.dp > 1 ? fmt::format("replicas     {}, which add up gradients by {}\n", ranks, o.dp_reduce)
               : fmt::format("ranks        {}, {} of the hidden {} for each\n", ranks,
                             o.hidden / ranks, o.hidden));
  say(fmt::format("output       {}\n", folder.path().string()));
  return log;
}

/// Chooses the points of each update for one replica.
class Sampler {
 public:
  Sampler(const Options& o, int rank) : share_(o.batch_size / o.dp) {
    const std::int64_t points = o.points > 0 ? o.points : o.dp > 1 ? 4096 : 0;
    if (points == 0) return;
    if (points < o.dp)
      fail(fmt::format("--points {}: {} replicas need a point each", points, o.dp),
           ErrorKind::usage);
    mine_ = own_partition(rank, static_cast<int>(o.dp), points, o.seed);
  }

  /// Returns the numbers of the points: new ones, or this replica's in turn.
  std::vector<std::int64_t> points(std::int64_t update) const {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(share_));
    std::iota(numbers.begin(), numbers.end(), update * share_);
    if (!mine_.empty())
      for (std::int64_t& number : numbers)
        number = mine_[static_cast<std::size_t>(number) % mine_.size()];
    return numbers;
  }

 private:
  std::int64_t share_;
  std::vector<std::int64_t> mine_;
};

/// Adds up the gradients of replicas as PyTorch's DataParallel does: one rank receives all of them
/// and sends the sums back. It receives and sends as many times the gradients' bytes as there are
/// other replicas; in an all-reduce no rank moves more than twice these bytes.
void gather_gradients(const ParameterSpace& space, Communicator& replicas) {
  for (const auto& slot : space.slots()) {
    const View sum = slot.tensor->grad().view({slot.size});
    const bool root = replicas.rank() == 0;
    const Tensor all =
        root ? Tensor::empty(space.device(), {replicas.size(), slot.size}, sum.dtype) : Tensor();
    const std::string label = "gradient of " + slot.name;
    const CallOptions options{.label = label};
    replicas.gather(sum, root ? all.view() : View(), 0, options)->wait();
    for (int rank = 0; root && rank < replicas.size(); ++rank) {
      const View other = all.slice(rank * slot.size, {slot.size}).view();
      if (rank == 0)
        run(Cast{.out = sum, .in = other}, space.device()->stream());
      else
        run(Add{.out = sum, .a = sum, .b = other}, space.device()->stream());
    }
    replicas.broadcast(sum, 0, options)->wait();
  }
}

void train(const Options& o, const World& world) {
  std::signal(SIGPIPE, SIG_IGN);  // see say() in progress.h
  require_ranks(o, world.size());
  cpu::set_threads(o.threads > 0 ? static_cast<int>(o.threads) : world.cores());
  const auto ranks = world.communicator(nullptr, {});
  CommunicatorGroup group(*ranks, true);
  TensorShare share;
  if (o.dp == 1) share = {.rank = world.rank(), .size = world.size()};
  if (share.size > 1) share.group = &group;
  const Sampler sampler(o, o.dp > 1 ? world.rank() : 0);

  const DevicePtr device = make_cpu_device();
  Mlp model(
      {.in = 3, .width = o.width, .layers = o.layers, .classes = o.classes, .hidden = o.hidden},
      share);
  ParameterSpace space(model.parameters(), device, o.dtype(), ParameterSpace::Use::training);
  space.initialize(o.seed);
  const auto optimizer = make_sgd(space, {.momentum = 0.9});
  const BucketPlan buckets(space.layout(), {.wide_bytes = size_of(o.dtype())});
  std::optional<GradientReducer> reducer;
  if (o.dp > 1 && o.dp_reduce == "all-reduce")
    reducer.emplace(space, buckets, *ranks, GradientReducer::Options());
  const RateSchedule rate{.kind = ScheduleKind::cosine, .rate = o.lr, .updates = o.steps};
  std::optional<RunFolder> folder;
  std::optional<RunLog> log;
  if (world.rank() == 0) {
    folder.emplace(o.output, "train_mlp");
    log = open_log(o, world.size(), *folder);
  }

  std::vector<std::int64_t> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
  const Points test = spiral(device, o, "test", numbers);
  for (std::int64_t step = 1; step <= o.steps; ++step) {
    const auto began = std::chrono::steady_clock::now();
    const Points points = spiral(device, o, "train", sampler.points(step - 1));
    space.forget_gradients();
    const Tensor mine =
        model.loss(points.x, points.targets(), {.scale = 1.0 / static_cast<double>(o.batch_size)})
            .loss;
    if (reducer) reducer->expect();
    backward(mine);
    if (reducer)
      reducer->finish();
    else if (o.dp > 1)
      gather_gradients(space, *ranks);
    optimizer->step(rate.at(step - 1));
    double loss = mine.item();
    if (o.dp > 1) {
      const std::vector<double> all = ranks->gather_values(loss, "loss");
      loss = std::accumulate(all.begin(), all.end(), 0.0);
    }
    const std::chrono::duration<double, std::milli> passed =
        std::chrono::steady_clock::now() - began;
    nlohmann::ordered_json line{
        {"step", step}, {"loss", loss}, {"lr", rate.at(step - 1)}, {"step_ms", passed.count()}};
    if (step % 50 == 0 || step == o.steps) {
      const double right = accuracy(model, test);
      line["accuracy"] = right;
      say(fmt::format("step {:>5}/{} | loss {:.6f} | {:.1f} % right\n", step, o.steps, loss,
                      100 * right));
    }
    if (log) log->write("train", line);
    if (!std::isfinite(loss))
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
                             "mpirun starts divide its matrices or, with --dp, the points.");
    sluice::declare(line, options);
    if (line.parse(argc, argv)) sluice::train(options, world);
  });
}
