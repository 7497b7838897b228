#include <fmt/format.h>

#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include "apps/data/tokens/pairs.h"
#include "engine/autograd.h"
#include "kernels/cross_entropy.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/training/one_step.h"
#include "tests/support/training/pipelines.h"

// Several documents in a sequence have the values and gradients that each has in a sequence of its
// own.

namespace sluice::test::packed_test {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::int64_t length = 16;
/// Documents of four sequences. The second sequence is one document, and the last is filled up with
/// what does not count.
const std::vector<std::vector<std::int64_t>> rows{{5, 7, 4}, {16}, {1, 9, 6}, {10, 2}};

std::vector<std::int64_t> documents() {
  std::vector<std::int64_t> all;
  for (const auto& row : rows)
    all.insert(all.end(), row.begin(), row.end());
  return all;
}

/// Appends a document's inputs and targets; its last token has no target.
void append(Batch& batch, std::size_t number) {
  const Ids ids = random_ids(static_cast<std::size_t>(documents()[number]), 64, number);
  batch.tokens.insert(batch.tokens.end(), ids.begin(), ids.end());
  batch.targets.insert(batch.targets.end(), ids.begin() + 1, ids.end());
  batch.targets.push_back(no_target);
  *batch.counted += static_cast<std::int64_t>(ids.size()) - 1;
}

void fill_up(Batch& batch) {
  while (batch.tokens.size() % length != 0) {
    batch.tokens.push_back(0);
    batch.targets.push_back(no_target);
  }
}

Batch packed() {
  Batch batch{{}, 0, 0};
  std::size_t number = 0;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      batch.documents.starts.push_back(static_cast<std::int64_t>(batch.tokens.size()));
      append(batch, number++);
    }
    fill_up(batch);
  }
  return batch;
}

Batch one_in_each_row() {
  Batch batch{{}, 0, 0};
  for (std::size_t number = 0; number < documents().size(); ++number) {
    append(batch, number);
    fill_up(batch);
  }
  return batch;
}

TrainingTask task_of(const char* family, DType dtype) {
  TrainingTask task{.dtype = dtype, .batch_size = 4, .seq_len = length};
  if (std::string_view(family) != "gpt2") task.config = small_model(family, 3);
  return task;
}

}  // namespace

TEST_CASE("documents that share a sequence train as if each had its own", "[pack][ranks]") {
  const ThreadCount one(1);
  const StepLayout layouts[] = {
      {1, 1, 1, 4},           {1, 1, 1, 1}, {1, 1, 1, 2, "", false, Recompute::block},
      {2, 1, 1, 1},           {1, 2, 1, 1}, {1, 1, 2, 2},
      {1, 1, 2, 4, "", true}, {2, 2, 1, 1}, {1, 1, 1, 1, "layer-major"}};
  for (const char* const family : {"gpt2", "llama-3.2-1b", "gptj-6b"})
    for (const DType dtype : {DType::f64, DType::f32}) {
      TrainingTask apart = task_of(family, dtype);
      apart.batch_size = static_cast<std::int64_t>(documents().size());
      const OneStep expected =
          one_step(apart, apart.resident(), one_in_each_row(), DeviceKind::cpu);
      for (const StepLayout& layout : layouts) {
        const bool gpu = dtype == DType::f32;
        if (gpu && (!have_gpu() || !in_form(4, {&layout - layouts, family[0]}))) continue;
        CAPTURE(family, name_of(dtype), layout.text());
        check_close(one_step(task_of(family, dtype), layout, packed(),
                             gpu ? DeviceKind::cuda : DeviceKind::cpu),
                    expected, gpu ? 2e-5 : 1e-12);
      }
    }
}

TEST_CASE("a document's logits are those that it has alone", "[pack]") {
  const ThreadCount one(1);
  for (const DeviceKind kind : device_kinds())
    for (const char* const family :
         {"gpt2", "gptj-6b", "llama-3.2-1b", "qwen3-0.6b", "pythia-160m"}) {
      const TrainingTask task = task_of(family, DType::f32);
      const DevicePtr device =
          kind == DeviceKind::cuda ? open_gpu(1) : make_cpu_device(std::size_t{64} << 20);
      TrainingRun run(task, task.resident(), device);
      const Decoder& model = run.training().model;
      const NoGrad no_grad;
      const Batch batch = packed();
      const auto logits_of = [&](const Shape& shape, std::span<const std::int32_t> ids,
                                 const Documents& of) {
        const Tensor tokens = Tensor::from_tokens(device, shape, ids);
        return model.logits(model.hidden(tokens, {}, of)).to_host();
      };
      const Values all = logits_of({4, length}, batch.tokens, batch.documents);
      const Values mixed = logits_of({4, length}, batch.tokens, {});
      double mixing = 0;
      for (std::size_t number = 0; number < batch.documents.starts.size(); ++number) {
        const auto first = static_cast<std::size_t>(batch.documents.starts[number]);
        const auto count = static_cast<std::size_t>(documents()[number]);
        const Values alone =
            logits_of({1, documents()[number]}, std::span(batch.tokens).subspan(first, count), {});
        double apart = 0;
        for (std::size_t i = 0; i < alone.size(); ++i) {
          apart = std::max(apart, std::abs(all[64 * first + i] - alone[i]));
          mixing = std::max(mixing, std::abs(mixed[64 * first + i] - alone[i]));
        }
        CAPTURE(family, name_of(kind), number, apart);
        CHECK(apart <= 2e-5);
      }
      CHECK(mixing > 1e-3);  // as one text they differ
    }
}

TEST_CASE("dropout of packed documents is the same in a micro-batch of any size", "[pack]") {
  const ThreadCount one(1);
  TrainingTask task = task_of("gpt2", DType::f64);
  task.dropout = 0.2;
  const auto train = [&](std::int64_t micro_batch, const Batch& batch) {
    return one_step(task, task.resident(StateLayout::fp32, micro_batch), batch, DeviceKind::cpu);
  };
  const OneStep expected = train(4, packed());
  check_close(train(1, packed()), expected, 1e-12);
  // Equal documents of a sequence are dropped differently.
  Batch twice = packed();
  std::copy_n(twice.tokens.begin(), 4, twice.tokens.begin() + 12);
  Batch once = twice;
  for (Batch* const batch : {&twice, &once})
    std::ranges::fill(batch->targets, no_target);
  std::copy_n(twice.tokens.begin() + 1, 3, twice.targets.begin() + 12);
  std::copy_n(once.tokens.begin() + 1, 3, once.targets.begin());
  twice.counted = once.counted = 3;
  CHECK(std::abs(train(1, twice).loss - train(1, once).loss) > 1e-6);
}

TEST_CASE("a validation of packed pairs has the loss of padded ones", "[pack][ranks]") {
  const ThreadCount one(1);
  Ids marks;
  // So many that packed ones take two batches, of which the second is filled up.
  for (int i = 0; i < 27; ++i)
    for (const std::int64_t count : {5, 9, 2, 7, 7, 3, 12, 4, 4, 6}) {
      marks.push_back(2);
      marks.push_back(0);
      marks.insert(marks.end(), static_cast<std::size_t>(count - 1), 1);
    }
  const auto pairs = [&](bool pack) {
    return std::make_unique<Pairs>(
        tokens_in_memory(random_ids(marks.size(), 64, 3)), tokens_in_memory(marks),
        Pairs::Length{.given = length, .pack = pack}, Pairs::Names{"t.bin", "t.mask"});
  };
  const auto padded = pairs(false), full = pairs(true);
  CHECK(full->rows() < padded->rows());
  CHECK(EvaluationBatches(*full, 1000, length).count() == 2);
  CHECK(full->rows() % EvaluationBatches::rows_for(length) != 0);
  for (const bool pipeline : {false, true}) {
    TrainingTask task = task_of("gpt2", DType::f64);
    if (pipeline) task.pp = 2;
    std::mutex mutex;
    std::vector<double> losses;
    on_mesh(task, task.resident(), DeviceKind::cpu,
            [&](const Ranks& ranks, const DevicePtr& device) {
              TrainingRun run(task, task.resident(), device, {}, ranks);
              for (const auto& tokens : {padded.get(), full.get()}) {
                const double loss = run.training().trainer.evaluate(*tokens, 1000);
                const std::lock_guard lock(mutex);
                losses.push_back(loss);
              }
            });
    CAPTURE(pipeline);
    for (const double loss : losses)
      CHECK(loss == Approx(losses.front()).epsilon(1e-12));
  }
}

}  // namespace sluice::test::packed_test
