#include "apps/plan/cost/scaling.h"

#include <nlohmann/json.hpp>

#include "apps/plan/cost/stage_times.h"
#include "models/decoder/decoder.h"
#include "optim/space/parameter_space.h"
#include "parallel/pipeline/schedule_text.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/planning.h"

// Predicted traffic and step times of many ranks: figures that follow by hand from the formula, and
// bounds that hold whatever the figures are.

namespace sluice::test::scaling_test {
namespace {

/// 1000 bytes of gradients in 3 + 1 buckets, as many of weights in 4.
constexpr Traffic small_traffic{
    .wide_gradients = 800, .narrow_gradients = 200, .weights = 1000, .bucket = 300};
constexpr Link slow{.bandwidth = 100, .latency = 0.01};
constexpr std::int64_t some_ranks[] = {1, 2, 3, 4, 7, 8, 9, 16, 100, 1000, 4096, 65536};

Traffic with_zero(Traffic traffic) {
  traffic.zero = 1;
  return traffic;
}

Communication communicate(const Traffic& traffic, std::int64_t ranks, const Cover& cover = {},
                          std::int64_t reductions = 1) {
  return predict_communication(traffic, ranks, slow, cover, reductions);
}

/// A step that takes a machine of no particular kind some milliseconds.
ScalingTask some_task(bool zero) {
  ScalingTask task{
      .config = {.n_layer = 4, .n_head = 2, .n_embd = 64, .vocab_size = 101, .n_positions = 32},
      .choice = {.micro_batch = 4,
                 .placement = {.blocks =
                                   std::vector<Placement>(4, {.recompute = Recompute::block})}},
      .work = {.seq_len = 32, .resident_state = 1e6, .streamed_state = 1e6},
      .state = 3e6,
      .profile = machine(true),
      .interconnect = {.link = {1e9, 1e-6}, .network = {1e9, 2e-5}, .ranks_per_node = 8},
      .traffic = {}};
  task.traffic = traffic_of(task.config, task.choice, DType::f32);
  task.traffic.bucket = 1 << 17;
  task.traffic.zero = zero;
  return task;
}

}  // namespace

TEST_CASE("a rank sends 2 (N-1)/N of the gradients, in 2 (N-1) messages a bucket", "[scaling]") {
  struct Row {
    std::int64_t ranks;
    double bytes;
    std::int64_t messages;
    double seconds;  ///< bytes at 100 B/s and 10 ms a message
  };
  const Row rows[] = {{1, 0, 0, 0},
                      {2, 1000, 8, 10.08},
                      {4, 1500, 24, 15.24},
                      {8, 1750, 56, 18.06},
                      {1000, 1998, 7992, 99.9}};
  for (const auto& [ranks, bytes, messages, seconds] : rows) {
    INFO(ranks << " ranks");
    const Communication reduced = communicate(small_traffic, ranks);
    CHECK(reduced.gradient_bytes == Approx(bytes));
    CHECK(reduced.weight_bytes == 0);
    CHECK(reduced.messages == messages);
    CHECK(reduced.seconds() == Approx(seconds));
    // ZeRO-1 sends half of it as gradients, half as weights of their width.
    const Communication zero = communicate(with_zero(small_traffic), ranks);
    CHECK(zero.gradient_bytes == Approx(bytes / 2));
    CHECK(zero.weight_bytes == Approx(bytes / 2));
    CHECK(zero.messages == messages);
    CHECK(zero.seconds() == Approx(seconds));
  }
  Traffic narrow = with_zero(small_traffic);
  narrow.weights = 500;  // two buckets
  const Communication sent = communicate(narrow, 4);
  CHECK(sent.weight_bytes == Approx(375));
  CHECK(sent.messages == 3 * (4 + 2));
  CHECK(sent.weight_seconds == Approx(3.75 + 6 * 0.01));
}

TEST_CASE("ZeRO-2 sends the gradients in places with each micro-batch, under its backward pass",
          "[scaling]") {
  Traffic traffic = small_traffic;
  traffic.wide_in_places = 400;
  traffic.narrow_in_places = 100;
  traffic.sections = 2;
  traffic.zero = 2;
  // 1000 bytes once and 500 twice more; a rank of four sends three quarters. Each section has a
  // bucket of wide and one of narrow gradients; the rest has two and one.
  const Communication sent = communicate(traffic, 4, {}, 3);
  CHECK(sent.gradient_bytes == Approx(1500));
  CHECK(sent.weight_bytes == Approx(750));
  CHECK(sent.messages == 3 * (3 * 2 * 2 + 3 + 4));
  CHECK(sent.gradient_seconds == Approx(15 + 3 * 15 * 0.01));
  CHECK(sent.exposed == Approx(sent.seconds()));
  CHECK(communicate(traffic, 4, {.backward = 2}, 3).exposed == Approx(sent.seconds() - 3 * 2));
  // ZeRO-2 with one micro-batch sends what ZeRO-1 sends, in buckets that end at sections.
  const Communication zero = communicate(with_zero(small_traffic), 4, {.backward = 2});
  CHECK(communicate(traffic, 4, {.backward = 2}, 1).exposed == Approx(zero.exposed + 3 * 3 * 0.01));
  // A section that is alone is reduced once, and the last pass alone hides it.
  traffic.sections = 1;
  CHECK(communicate(traffic, 4, {.backward = 2}, 3).exposed == Approx(zero.exposed + 2 * 3 * 0.01));
}

TEST_CASE("communication hides under computing but for one bucket", "[scaling]") {
  const double all = 15.24, bucket = all / 4;
  CHECK(communicate(small_traffic, 4).exposed == Approx(all));
  CHECK(communicate(small_traffic, 4, {.backward = 5}).exposed == Approx(all - 5));
  CHECK(communicate(small_traffic, 4, {.backward = 100}).exposed == Approx(bucket));
  CHECK(communicate(small_traffic, 4, {.forward = 100}).exposed == Approx(all));
  const Traffic zero = with_zero(small_traffic);
  CHECK(communicate(zero, 4, {.backward = 100}).exposed == Approx(bucket / 2 + all / 2));
  CHECK(communicate(zero, 4, {.forward = 2}).exposed == Approx(all - 2));
  CHECK(communicate(zero, 4, {.backward = 100, .forward = 100}).exposed == Approx(bucket));
  Traffic apart = small_traffic;
  apart.overlap = false;
  CHECK(communicate(apart, 4, {.backward = 100}).exposed == Approx(all));
}

TEST_CASE("whatever the figures, exposed time is a part of the communication", "[scaling]") {
  for (const bool zero : {false, true})
    for (const double bucket : {1.0, 64.0, 1e4})
      for (const double latency : {0.0, 1e-3, 1.0})
        for (const double cover : {0.0, 1.0, 1e3}) {
          Traffic traffic = small_traffic;
          traffic.zero = zero;
          traffic.bucket = bucket;
          Communication before;
          for (const std::int64_t ranks : some_ranks) {
            CAPTURE(zero, bucket, latency, cover, ranks);
            const Communication now =
                predict_communication(traffic, ranks, {100, latency}, {cover, cover}, 1);
            CHECK(now.exposed >= 0);
            CHECK(now.exposed <= now.seconds() * (1 + 1e-12));
            CHECK(now.seconds() >= before.seconds());
            CHECK(now.exposed >= before.exposed);
            CHECK(now.bytes() >= before.bytes());
            CHECK(now.bytes() < 2 * (traffic.wide_gradients + traffic.narrow_gradients));
            before = now;
          }
        }
}

TEST_CASE("beyond a node messages take the slower way, whose bandwidth is shared", "[scaling]") {
  const Interconnect usual{.link = {300e9, 3e-6}, .network = {12e9, 1e-5}, .ranks_per_node = 8};
  for (const std::int64_t ranks : {1, 2, 8}) {
    CHECK(usual.among(ranks).bandwidth == 300e9);
    CHECK(usual.among(ranks).latency == 3e-6);
  }
  CHECK(usual.among(9).bandwidth == 12e9 / 8);
  CHECK(usual.among(9).latency == 1e-5);
  // A ring leaves a node once; ranks of the node that are in other groups have rings of their own.
  Interconnect rings = usual;
  rings.rings = true;
  CHECK(rings.among(8).bandwidth == 300e9);
  CHECK(rings.among(9).bandwidth == 12e9);
  CHECK(rings.among(9).latency == Approx((1e-5 + 7 * 3e-6) / 8));
  CHECK(rings.among(64, 32).latency == 1e-5);
  CHECK(rings.among(64, 4).bandwidth == 12e9 / 4);
  CHECK(rings.among(64, 32).bandwidth == 12e9 / 8);
  CHECK(rings.between(7, 8).bandwidth == 12e9 / 8);
  CHECK(rings.between(8, 9).bandwidth == 300e9);
  const Interconnect odd{.link = {1e9, 1e-4}, .network = {12e9, 1e-5}, .ranks_per_node = 4};
  CHECK(odd.among(5).bandwidth == 1e9);
  CHECK(odd.among(5).latency == 1e-4);
}

TEST_CASE("what is sent is what the parameter space holds", "[scaling]") {
  const DecoderConfig config{
      .n_layer = 3, .n_head = 2, .n_embd = 66, .n_inner = 47, .vocab_size = 101, .n_positions = 32};
  Decoder model(config);
  const ParameterSpace space(model.parameters(), make_meta_device(0, 0), DType::bf16,
                             ParameterSpace::Use::training, {.narrow_gradients = true});
  double wide = 0, narrow = 0;
  for (const auto& slot : space.slots())
    (slot.bulk ? narrow : wide) += static_cast<double>(slot.size) * (slot.bulk ? 2 : 4);
  const Traffic traffic = traffic_of(config, {.narrow_gradients = true}, DType::bf16);
  CHECK(traffic.narrow_gradients == narrow);
  CHECK(narrow > 0);
  CHECK(traffic.wide_gradients == wide);
  CHECK(traffic.weights == 2.0 * static_cast<double>(config.parameter_count()));
  // Those of the three blocks are in places of ZeRO-2.
  double wide_in_places = 0;
  for (const auto& slot : space.slots())
    if (slot.name.starts_with("h.") && !slot.bulk)
      wide_in_places += 4 * static_cast<double>(slot.size);
  CHECK(traffic.wide_in_places == wide_in_places);
  CHECK(traffic.narrow_in_places == narrow);
  CHECK(traffic.sections == 3);
  const Traffic all_wide = traffic_of(config, {}, DType::f32);
  CHECK(all_wide.wide_gradients == 4.0 * static_cast<double>(config.parameter_count()));
  CHECK(all_wide.narrow_gradients == 0);
  CHECK(all_wide.weights == all_wide.wide_gradients);
}

TEST_CASE("one rank's step is the cost model's, with nothing to send", "[scaling]") {
  for (const bool zero : {false, true}) {
    const ScalingTask task = some_task(zero);
    const ScalingRow row = predict_row(task, 1, 8, 8);
    StepWork work = task.work;
    work.batch = 8;
    const StepTime alone = predict_step(task.config, task.choice, work, task.profile);
    CHECK(row.weak.seconds == alone.total());
    CHECK(row.weak.tokens_per_second == Approx(8 * 32 / alone.total()));
    CHECK(row.weak.communication.bytes() == 0);
    CHECK(row.weak.communication.exposed == 0);
    CHECK(row.efficiency == 1);
    CHECK(row.state == 3e6);
    REQUIRE(row.strong);
    CHECK(row.strong->speed_up == 1);
  }
}

TEST_CASE("more ranks are slower each and faster together", "[scaling]") {
  const ScalingTask task = some_task(false);
  ScalingRow before = predict_row(task, 1, 8, 64);
  for (const std::int64_t ranks : {2, 4, 8, 16, 32, 64, 128}) {
    const ScalingRow row = predict_row(task, ranks, 8, 64);
    CAPTURE(ranks);
    CHECK(row.weak.compute.total() == before.weak.compute.total());
    CHECK(row.weak.seconds == row.weak.compute.total() + row.weak.communication.exposed);
    CHECK(row.weak.seconds > before.weak.seconds);
    CHECK(row.efficiency < before.efficiency);
    CHECK(row.efficiency == Approx(predict_row(task, 1, 8, 64).weak.seconds / row.weak.seconds));
    CHECK(row.state == 3e6);
    REQUIRE(row.strong.has_value() == (ranks <= 64));
    if (row.strong) {
      CHECK(row.strong->batch * ranks == 64);
      CHECK(row.strong->time.compute.forward < before.strong->time.compute.forward);
      CHECK(row.strong->speed_up < static_cast<double>(ranks));
      CHECK(row.strong->speed_up == Approx(before.strong->time.seconds * before.strong->speed_up /
                                           row.strong->time.seconds));
    }
    before = row;
  }
  CHECK_FALSE(predict_row(task, 3, 8, 64).strong);
}

TEST_CASE("the last micro-batch's backward hides gradients, and no more", "[scaling]") {
  ScalingTask task = some_task(true);
  task.interconnect.link.bandwidth = 1e8;             // so that much stays exposed
  const RanksTime time = predict_ranks(task, 4, 12);  // three micro-batches
  const Communication& sent = time.communication;
  CHECK(sent.exposed ==
        Approx(sent.seconds() -
               (time.compute.backward + time.compute.recompute + time.compute.forward) / 3));
  // A rank with fewer sequences than a micro-batch has one of them.
  const RanksTime few = predict_ranks(task, 4, 2);
  CHECK(few.communication.exposed ==
        Approx(few.communication.seconds() -
               (few.compute.backward + few.compute.recompute + few.compute.forward)));
}

TEST_CASE("with ZeRO-1 ranks share state, its update and its way to the host", "[scaling]") {
  const ScalingTask whole = some_task(false), shared = some_task(true);
  for (const std::int64_t ranks : {2, 8, 1024}) {
    const auto n = static_cast<double>(ranks);
    const ScalingRow a = predict_row(whole, ranks, 8, 8), b = predict_row(shared, ranks, 8, 8);
    CHECK(b.state == 3e6 / n);
    CHECK(b.weak.compute.update == Approx(a.weak.compute.update / n));
    CHECK(b.weak.compute.bytes_each_way == static_cast<std::uint64_t>(1e6 / n));
    CHECK(b.weak.compute.forward == a.weak.compute.forward);
  }
}

TEST_CASE("with ZeRO-1 a rank's CPU updates its share of the state", "[scaling]") {
  ScalingTask task = some_task(true);
  task.work.streamed_state = 0;
  task.work.cpu_state = 8e9;
  for (Placement& block : task.choice.placement.blocks)
    block.residency = Residency::cpu;
  task.profile.host_rate = 1e9;
  const double two = predict_ranks(task, 2, 4).compute.stall;
  CHECK(two > 4);  // 4 GB are read and written at 1 GB/s
  CHECK(predict_ranks(task, 4, 4).compute.stall == Approx(two / 2).epsilon(0.01));
}

TEST_CASE("a message takes longer over PCIe than over NVLink", "[scaling]") {
  for (const char* card : {"a100", "h100", "h200"})
    CHECK(known_profile(card).link_latency == Approx(3.4e-6));
  for (const char* card : {"2080ti", "3090", "4090"})
    CHECK(known_profile(card).link_latency == Approx(5.7e-6));
}

TEST_CASE("rows are powers of two, and the number asked for", "[scaling]") {
  using Counts = std::vector<std::int64_t>;
  const Counts usual{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  for (const std::int64_t given : {1, 2, 8, 4096})
    CHECK(rank_counts(given) == usual);
  const Counts six = rank_counts(6);
  CHECK(six.size() == usual.size() + 1);
  CHECK(Counts(six.begin() + 2, six.begin() + 5) == Counts{4, 6, 8});
  CHECK(rank_counts(5000).back() == 8192);
  CHECK(rank_counts(5000)[13] == 5000);
  CHECK(rank_counts(8192).back() == 8192);
  CHECK(rank_counts(65536).size() == 17);
}

TEST_CASE("a profile says how its ranks are joined, an old one as its device would", "[scaling]") {
  const TempDir folder;
  const auto file = folder.path() / "probe.json";
  DeviceProfile profile = known_profile("h100");
  CHECK(profile.link_bandwidth == Approx(0.75 * 450e9));
  CHECK(profile.link_bandwidth > known_profile("4090").link_bandwidth);
  profile.link_bandwidth = 123e9;
  profile.link_latency = 7e-6;
  save_profile(file, profile);
  CHECK(load_profile(file).link_bandwidth == 123e9);
  CHECK(load_profile(file).link_latency == 7e-6);

  const auto load = [&](const Json& json) {
    write_file(file, json.dump());
    return load_profile(file);
  };
  Json json = Json::parse(read_file(file));
  for (const double bad : {0.0, -1.0}) {
    json["link_bandwidth"] = bad;
    CHECK_THAT(error_message([&] { load(json); }), Contains("probe.json"));
  }
  json.erase("link_bandwidth");
  json.erase("link_latency");
  json["to_device_rate"] = 20e9;
  json["to_host_rate"] = 15e9;
  CHECK(load(json).link_bandwidth == 15e9);
  CHECK(load(json).link_latency > 0);
  json["gpu"] = false;
  CHECK(load(json).link_bandwidth == 11.8e9);
  CHECK(load(json).link_latency == 1e-6);
}

TEST_CASE("sharded gradients are reduced when a schedule moves on to another block", "[scaling]") {
  for (const auto name : {ScheduleName::one_forward_one_backward, ScheduleName::gpipe,
                          ScheduleName::interleaved, ScheduleName::zero_bubble_h1})
    for (const int ranks : {2, 4})
      for (const int blocks : {1, 2, 3})
        for (const int groups : {1, 3}) {
          const int each = name == ScheduleName::interleaved ? 3 : 1;
          if (each * blocks == 1) continue;  // a rank that has one block
          CAPTURE(name_in(pipelines, name), ranks, blocks, groups);
          const Schedule schedule = make_schedule(name, ranks, each, groups * ranks);
          std::vector<DecoderPart> parts;
          for (int stage = 0; stage < schedule.stages; ++stage)
            parts.push_back({stage * blocks, (stage + 1) * blocks});
          CHECK(reductions_of(name, ranks, blocks, schedule.micro_batches) ==
                reductions_of(schedule.ranks[0], parts));
        }
  // Two blocks, each of which serves all micro-batches first.
  const Schedule layers = schedule_from_csv("0F0,0F1,0F2,1F0,1F1,1F2,1B0,1B1,1B2,0B0,0B1,0B2\n");
  CHECK(reductions_of(layers.ranks[0], {{0, 1}, {1, 2}}) == 1);
  CHECK(reductions_of(layers.ranks[0], {{0, 2}, {2, 4}}) == 3);
}

}  // namespace sluice::test::scaling_test
