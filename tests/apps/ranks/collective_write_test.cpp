#include "apps/checkpoint/collective_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_saver.h"
#include "engine/io/stored_tensor.h"
#include "tests/parallel/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/pipelines.h"

// Ranks write a checkpoint's files together. Ranks are threads here, and the model is large enough
// for several sections of 4 MiB in each file.

namespace sluice::test::collective_write_test {
namespace {

using Bytes = std::vector<std::byte>;

TrainingTask large_task() {
  return {
      .config = {.n_layer = 2, .n_head = 4, .n_embd = 256, .vocab_size = 5003, .n_positions = 8},
      .batch_size = 4,
      .seq_len = 8,
      .bucket_size = "1MiB"};
}

class Collected final : public Output {
 public:
  std::string name() const override { return "memory"; }
  void write(std::span<const std::byte> some) override {
    bytes.insert(bytes.end(), some.begin(), some.end());
  }
  void finish() override { ++finished; }

  Bytes bytes;
  int finished = 0;
};

/// A file of which ranks have written parts.
struct Assembled {
  Bytes bytes;
  std::vector<std::uint64_t> of_rank;  ///< bytes that each rank wrote

  std::uint64_t written() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t part : of_rank)
      sum += part;
    return sum;
  }
};

/// Adds a rank's part. Parts that overlap or leave a gap would not add up to the file's bytes.
void add(Assembled& file, int rank, std::uint64_t size, ByteRange stretch, const Collected& part) {
  expect(part.bytes.size() == stretch.end - stretch.begin, "the bytes of a stretch");
  expect(part.bytes.empty() || stretch.begin % SectionSums::section_bytes == 0,
         "a stretch begins with a section");
  file.bytes.resize(size);
  std::ranges::copy(part.bytes, file.bytes.begin() + static_cast<std::ptrdiff_t>(stretch.begin));
  file.of_rank.resize(std::max(file.of_rank.size(), static_cast<std::size_t>(rank) + 1));
  file.of_rank[static_cast<std::size_t>(rank)] = part.bytes.size();
}

/// Trains a step and returns both files, written by `writers`.
std::map<std::string, Assembled> files_of(const TrainingTask& task, const MemoryChoice& choice,
                                          const std::vector<int>& writers) {
  std::map<std::string, Assembled> files;
  std::mutex mutex;
  on_mesh(task, choice, DeviceKind::cpu, [&](const Ranks& ranks, const DevicePtr& device) {
    TrainingRun run(task, choice, device, {}, ranks);
    run.step();
    run.training().parallel.optimizer.synchronize();
    CheckpointFiles laid_out = lay_out(run.training().checkpoint());
    Collected weights, optimizer;
    write_files(laid_out, *ranks.control, writers, weights, optimizer);
    const std::lock_guard lock(mutex);
    const auto part = [&](const char* name, const StateFile& file, const Collected& output) {
      add(files[name], ranks.rank(), file.bytes(),
          range_of_writer(file.bytes(), ranks.rank(), writers), output);
      const bool writes = std::ranges::count(writers, ranks.rank()) > 0;
      expect(output.finished == (writes ? 1 : 0), "a writer finishes once");
    };
    part("weights", laid_out.weights, weights);
    part("optimizer", laid_out.optimizer, optimizer);
  });
  return files;
}

struct Layout {
  std::int64_t dp = 1, pp = 1, tp = 1, zero = 0;
  StateLayout state = StateLayout::fp32;
  DType dtype = DType::f32;
  std::string optimizer = "adamw";
};

TrainingTask task_of(const Layout& layout) {
  TrainingTask task = large_task();
  task.dp = layout.dp;
  task.batch_size = layout.dp;
  task.pp = layout.pp;
  task.tp = layout.tp;
  task.zero = layout.zero;
  task.dtype = layout.dtype;
  task.optimizer = layout.optimizer;
  return task;
}

Bytes bytes_of_file(const fs::path& path) {
  const std::string text = read_file(path);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("ranks write files of several sections together, each byte once", "[threads]") {
  const std::vector<Layout> layouts{
      {.dp = 2},
      {.dp = 3, .zero = 1},
      {.dp = 2, .zero = 1, .state = StateLayout::int8, .dtype = DType::bf16},
      {.dp = 2, .zero = 1, .state = StateLayout::bf16mv, .dtype = DType::bf16},
      {.dp = 2, .zero = 1, .optimizer = "adafactor"},
      {.dp = 2, .tp = 2, .zero = 1, .optimizer = "muon"},
      {.pp = 2},
      {.dp = 2, .pp = 2, .zero = 1},
      {.tp = 2},
      {.dp = 2, .pp = 1, .tp = 2, .zero = 1},
      {.dp = 2, .pp = 2, .tp = 2, .zero = 1}};
  for (const Layout& layout : layouts) {
    INFO(fmt::format("dp {} pp {} tp {} zero {} {}", layout.dp, layout.pp, layout.tp, layout.zero,
                     layout.optimizer));
    const TrainingTask task = task_of(layout);
    const MemoryChoice choice = task.resident(layout.state);
    const int ranks = static_cast<int>(layout.dp * layout.pp * layout.tp);
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::ranges::generate(all, [rank = 0]() mutable { return rank++; });
    // Each replica has all of the model and its state, unless ranks divide matrices: those add up
    // in another order.
    TrainingTask whole = task;
    whole.pp = 1;
    whole.zero = 0;
    const auto expected = files_of(layout.tp == 1 ? whole : task, choice, {0});
    for (const auto& writers : {all, std::vector{0, ranks - 1}}) {
      const auto found = files_of(task, choice, writers);
      for (const auto& [name, file] : expected) {
        INFO(name);
        if (name == "weights") CHECK(file.bytes.size() > 2 * SectionSums::section_bytes);
        CHECK((found.at(name).bytes == file.bytes));  // too long to be shown
        CHECK(found.at(name).written() == file.bytes.size());
        const std::size_t sections =
            (file.bytes.size() + SectionSums::section_bytes - 1) / SectionSums::section_bytes;
        CHECK(std::ranges::count_if(found.at(name).of_rank, [](auto bytes) { return bytes > 0; }) ==
              static_cast<std::ptrdiff_t>(std::min(sections, writers.size())));
      }
    }
  }
}

TEST_CASE("elements that a section's border cuts come whole and types are converted") {
  const TrainingTask task = large_task();
  const MemoryChoice choice = task.resident();
  TrainingRun run(task, choice, make_cpu_device());
  const CheckpointState state = run.training().checkpoint();
  ModelState model = state.model();
  for (const auto& [type, header] : {std::pair(StoredType::F32, 5), std::pair(StoredType::F32, 8),
                                     std::pair(StoredType::BF16, 3)}) {
    INFO(name_of(type) << " after " << header);
    StateFile file = lay_out_weights(model, state.whole, type);
    file.start.assign(static_cast<std::size_t>(header), std::byte{7});
    Bytes expected = file.start;
    for (const auto& slot : state.space.slots()) {
      Bytes elements(static_cast<std::size_t>(slot.size) * sizeof(float));
      state.space.read_weights(slot.offset, elements);
      Bytes stored(static_cast<std::size_t>(slot.size) * size_of(type));
      convert_floats(elements, DType::f32, stored, type);
      expected.insert(expected.end(), stored.begin(), stored.end());
    }
    CHECK(expected.size() > SectionSums::section_bytes);
    Collected output;
    write_together(file, model, state.ranks.control, {0}, output);
    CHECK((output.bytes == expected));
  }
}

TEST_CASE("a checkpoint that ranks write together is whole and read in parts by other layouts",
          "[threads]") {
  const TempDir dir;
  const Layout saved{.dp = 4, .zero = 1};
  const Json run_of{{"seed", 11}};
  const MemoryChoice choice = task_of(saved).resident();
  on_mesh(task_of(saved), choice, DeviceKind::cpu,
          [&](const Ranks& ranks, const DevicePtr& device) {
            TrainingRun run(task_of(saved), choice, device, {}, ranks);
            run.step();
            save_checkpoint(dir.path(), 1, run_of, run.training().checkpoint(), 1);
          });
  const fs::path checkpoint = checkpoint_path(dir.path(), 1);
  const CheckpointManifest manifest = read_manifest(checkpoint);
  CHECK(manifest.files.at(weights_file).sums().size() == 3);
  CHECK(manifest.files.at(optimizer_file).sums().size() == 6);
  CHECK_NOTHROW(verify_files(checkpoint, manifest));
  CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 1);

  for (const Layout& layout :
       {Layout{}, Layout{.dp = 2, .zero = 1}, saved, Layout{.dp = 8, .zero = 1}, Layout{.pp = 2},
        Layout{.tp = 2}, Layout{.tp = 4}, Layout{.dp = 2, .pp = 2, .tp = 2, .zero = 1}}) {
    INFO(fmt::format("dp {} pp {} tp {}", layout.dp, layout.pp, layout.tp));
    const TrainingTask task = task_of(layout);
    std::map<std::string, Assembled> again;
    std::int64_t kept = 0, all = 0;
    std::mutex mutex;
    on_mesh(task, choice, DeviceKind::cpu, [&](const Ranks& ranks, const DevicePtr& device) {
      TrainingRun run(task, choice, device, {}, ranks);
      load_checkpoint(checkpoint, manifest, run_of, run.training().checkpoint());
      CheckpointFiles files = lay_out(run.training().checkpoint());
      Collected weights, optimizer;
      write_files(files, *ranks.control, {0}, weights, optimizer);
      const std::lock_guard lock(mutex);
      for (const auto& slot : run.training().space.slots()) {
        for (const auto& [begin, end] : run.training().optimizer->kept(slot, 0))
          kept += end - begin;
        all += slot.size;
      }
      if (ranks.rank() > 0) return;
      CHECK((weights.bytes == bytes_of_file(checkpoint / weights_file)));
      CHECK((optimizer.bytes == bytes_of_file(checkpoint / optimizer_file)));
    });
    CHECK(kept * (layout.zero > 0 ? layout.dp : 1) == all);  // replicas of ZeRO-1 divide the state
  }
}

TEST_CASE("ranks verify a share of a checkpoint each") {
  const TempDir dir;
  const TrainingTask task = large_task();
  TrainingRun run(task, task.resident(), make_cpu_device());
  const fs::path checkpoint =
      save_checkpoint(dir.path(), 1, Json::object(), run.training().checkpoint(), 1);
  const CheckpointManifest manifest = read_manifest(checkpoint);
  const fs::path file = checkpoint / optimizer_file;
  const std::string good = read_file(file);
  for (const std::size_t shares : {1u, 2u, 4u, 9u})
    for (std::size_t at = 100; at < good.size(); at += SectionSums::section_bytes / 2) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      write_file(file, bad);
      std::size_t found = 0;
      for (std::size_t share = 0; share < shares; ++share)
        found += error_message([&] {
                   verify_files(checkpoint, manifest, share, shares);
                 }).find("optimizer.safetensors is damaged: bytes ") != std::string::npos;
      CAPTURE(shares, at);
      CHECK(found == 1);
    }
}

TEST_CASE("all ranks hear of a folder that rank 0 cannot make and of a file it cannot write",
          "[threads]") {
  const TempDir dir;
  write_file(dir.path() / "file", "in the way");
  fs::create_symlink("/dev/full", dir.path() / "full.safetensors");
  TrainingTask task = large_task();
  task.dp = 3;
  task.batch_size = 3;
  std::vector<std::string> messages(6);
  on_mesh(task, task.resident(), DeviceKind::cpu, [&](const Ranks& ranks, const DevicePtr& device) {
    TrainingRun run(task, task.resident(), device, {}, ranks);
    const CheckpointState state = run.training().checkpoint();
    const auto at = static_cast<std::size_t>(ranks.rank());
    messages[at] =
        error_message([&] { save_checkpoint(dir.path() / "file", 1, Json::object(), state, 1); });
    messages[3 + at] = error_message([&] {
      save_weights(ranks.rank() == 0 ? dir.path() / "full.safetensors" : fs::path(), state,
                   StoredType::F32);
    });
  });
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK_THAT(messages[i],
               Contains("the checkpoint was not saved: cannot ") && Contains("file: "));
    CHECK_THAT(messages[3 + i], Contains("full.safetensors: No space left on device"));
  }
}

TEST_CASE("a byte travels once if another rank writes it", "[threads]") {
  /// Counts the bytes that a rank sends and receives for checkpoints.
  class Traffic final : public Monitor {
   public:
    std::uint64_t begin(std::string_view, const Signature& signature) override {
      if (signature.kind == Collective::p2p && signature.label_text() == "checkpoint")
        bytes += signature.count;
      return 0;
    }
    void wait(std::uint64_t, double) override {}
    void end(std::uint64_t) override {}
    std::int64_t bytes = 0;
  };
  for (const Layout& layout : {Layout{.dp = 2}, Layout{.dp = 3, .zero = 1}, Layout{.pp = 2},
                               Layout{.dp = 2, .tp = 2, .zero = 1}}) {
    const TrainingTask task = task_of(layout);
    std::vector<std::shared_ptr<Traffic>> traffic(8);
    std::uint64_t size = 0;
    std::mutex mutex;
    const auto body = [&](const Ranks& ranks, const DevicePtr& device) {
      TrainingRun run(task, task.resident(), device, {}, ranks);
      CheckpointFiles files = lay_out(run.training().checkpoint());
      Collected weights, optimizer;
      write_files(files, *ranks.control, {0, 1}, weights, optimizer);
      const std::lock_guard lock(mutex);
      size = files.weights.bytes() + files.optimizer.bytes();
    };
    on_mesh(task, task.resident(), DeviceKind::cpu, body, {.monitor = [&](int rank) {
              return traffic[static_cast<std::size_t>(rank)] = std::make_shared<Traffic>();
            }});
    std::int64_t travelled = 0;
    for (const auto& one : traffic)
      travelled += one ? one->bytes : 0;
    INFO(fmt::format("dp {} pp {} tp {}", layout.dp, layout.pp, layout.tp));
    CHECK(travelled <= 2 * static_cast<std::int64_t>(size));  // counted where it goes and comes
    CHECK((travelled == 0) == (layout.zero + layout.pp + layout.tp == 2));  // replicas have all
  }
}

}  // namespace sluice::test::collective_write_test
