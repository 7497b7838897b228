#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "apps/checkpoint/checkpoint_saver.h"
#include "optim/make_optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/sync_watch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/single_rank.h"

// Checkpoints as folders of files: what guards them, and which stay.

namespace sluice::test::checkpoint_test {
namespace {

/// A small model with an optimizer, to be saved.
struct Model {
  DevicePtr device = make_cpu_device();
  TestModel made = random_model(small_config(), device, DType::f32);
  std::unique_ptr<Optimizer> optimizer = make_adamw(*made.space, {});
  LossScaler scaler;
  SingleRank rank{*made.space, *optimizer};
  CheckpointState state{*made.space,   *optimizer,           scaler,
                        rank.parallel, made.space->layout(), rank.ranks.mesh};
};

std::int64_t load_whole(const fs::path& saved, const Json& run, const CheckpointState& state) {
  const CheckpointManifest manifest = read_manifest(saved);
  verify_files(saved, manifest);
  return load_checkpoint(saved, manifest, run, state);
}

}  // namespace

TEST_CASE("every byte of state.json is guarded, and its damage is not the user's mistake") {
  const TempDir dir;
  const Json run{{"seed", 5}, {"precision", "fp32"}, {"eps", 1e-5}};
  const Model model;
  const CheckpointState& state = model.state;
  const auto saved = save_checkpoint(dir.path(), 3, run, state, 1);
  CHECK(load_whole(saved, run, state) == 3);
  const std::string good = read_file(saved / "state.json");
  std::size_t accepted = 0, nameless = 0, usage = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    write_file(saved / "state.json", bad);
    try {
      load_whole(saved, run, state);
      ++accepted;
    } catch (const Error& error) {
      nameless += std::string(error.what()).find("state.json") == std::string::npos;
      // An Error (usage) would end the run where an older checkpoint is whole.
      usage += error.kind() == ErrorKind::usage;
    }
  }
  CHECK(accepted == 0);
  CHECK(nameless == 0);
  CHECK(usage == 0);
}

TEST_CASE("state.json of a checkpoint of terabytes is read again") {
  const TempDir dir;
  const Model model;
  CheckpointManifest manifest = describe(3, Json::object(), model.state);
  for (const char* file : {weights_file, optimizer_file})
    manifest.files[file] = {SectionSums::section_bytes * 300'000,
                            std::vector<std::uint32_t>(300'000, 0xFFFFFFFF)};
  const std::string text = to_text(manifest);
  write_file(dir.path() / "state.json", text);
  CHECK(text.size() > std::size_t{8} << 20);
  CHECK(read_manifest(dir.path()).files.at(optimizer_file).sums().size() == 300'000);
}

TEST_CASE("what was saved last stays, whatever its step") {
  const TempDir dir;
  const Model model;
  const CheckpointState& state = model.state;
  for (const std::int64_t step : {20, 30})
    save_checkpoint(dir.path(), step, Json::object(), state, 5);
  // Saves as a run that went back to step 20.
  const auto saved = save_checkpoint(dir.path(), 24, Json::object(), state, 1);
  CHECK(list_checkpoints(dir.path()) == std::vector{saved});
  CHECK(load_whole(saved, Json::object(), state) == 24);
}

TEST_CASE("damage of a file is told with its place") {
  const TempDir dir;
  const Model model;
  const auto saved = save_checkpoint(dir.path(), 1, Json::object(), model.state, 1);
  const fs::path file = saved / "optimizer.safetensors";
  const std::string good = read_file(file);
  const auto damage = [&](std::size_t at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 16);
    write_file(file, bad);
    return error_message([&] { verify_files(saved, read_manifest(saved)); });
  };
  CHECK_THAT(damage(good.size() - 1),
             Contains("optimizer.safetensors is damaged: bytes 0 to ") &&
                 Contains(fmt::format("{} are not those", good.size() - 1)) &&
                 Contains("(its header and first_moment.wte.weight to second_moment.ln_f.bias)"));
  CHECK_THAT(damage(9), Contains("header"));
  write_file(file, good);
  CHECK_NOTHROW(verify_files(saved, read_manifest(saved)));
}

TEST_CASE("a checkpoint takes the place of one of the same step, which is set aside") {
  const TempDir dir;
  const Model model;
  const auto first = save_checkpoint(dir.path(), 5, Json{{"seed", 1}}, model.state, 3);
  const auto second = save_checkpoint(dir.path(), 5, Json{{"seed", 2}}, model.state, 3);
  CHECK(first == second);
  CHECK(read_manifest(second).fields->at("run").at("seed") == 2);
  CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 2);
  const auto before = dir.path() / "set-aside" / first.filename();
  CHECK(read_manifest(before).fields->at("run").at("seed") == 1);
  CHECK(load_whole(before, Json{{"seed", 1}}, model.state) == 5);
}

TEST_CASE("a checkpoint in another version's form is refused by its number") {
  const TempDir dir;
  const Model model;
  const auto saved = save_checkpoint(dir.path(), 3, Json::object(), model.state, 1);
  const auto rewritten = [&](int version) {
    Json json = Json::parse(read_file(saved / "state.json"));
    json["version"] = version;
    json.erase("crc32");
    const std::string text = json.dump();
    json["crc32"] = crc32_of(std::as_bytes(std::span(text)));
    write_file(saved / "state.json", json.dump());
    return error_message([&] { read_manifest(saved); });
  };
  CHECK(rewritten(2) == "(no error)");  // all else is right
  for (const int version : {1, 3})
    CHECK_THAT(rewritten(version), Contains(fmt::format("state.json has version {}", version)) &&
                                       Contains("this program reads 2"));
}

TEST_CASE("steps of more digits follow those of fewer") {
  const TempDir dir;
  const auto first = checkpoint_path(dir.path(), 99'999'999);
  const auto second = checkpoint_path(dir.path(), 100'000'000);
  REQUIRE(second.filename() == "step-100000000");
  for (const auto& path : {first, second})
    fs::create_directory(path);
  // Neither says which save it was, as damaged ones do not: the step decides.
  CHECK(list_checkpoints(dir.path()) == std::vector{first, second});
  CHECK(CheckpointHistory(dir.path()).newest() == second);
}

TEST_CASE("a checkpoint and one that it takes the place of have their names for good") {
  const TempDir dir;
  const Model model;
  const auto save = [&](int seed) {
    return save_checkpoint(dir.path(), 5, Json{{"seed", seed}}, model.state, 3);
  };
  const auto path = save(1), before = dir.path() / "set-aside" / path.filename();
  std::set<fs::path> after_moving, after_both;
  {
    const SyncWatch watch([&](const fs::path& synced) {
      if (fs::exists(before)) after_moving.insert(synced);
      if (fs::exists(before) && fs::exists(path)) after_both.insert(synced);
    });
    save(2);
  }
  CHECK(after_moving == std::set{dir.path(), before.parent_path()});
  CHECK(after_both == std::set{dir.path()});
}

}  // namespace sluice::test::checkpoint_test
