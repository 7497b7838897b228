#include <nlohmann/json.hpp>

#include "apps/plan/cost/tensor_traffic.h"
#include "apps/report/tensor_report.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/training/planning.h"

// Plans of tensor-parallel ranks: the memory of every shard, counted, and the traffic between
// ranks, computed by hand.

namespace sluice::test::tensor_plan_test {
namespace {

const std::string shape =
    "--device cpu --precision fp32 --n-layer 3 --n-head 4 --n-embd 64 --vocab-size 96 --context 16 "
    "--sample-tokens 0 --batch-size 8 --micro-batch 2 ";

Json plan_of(const std::string& flags) {
  return Json::parse(run_well("plan", words(flags + " --json")));
}
Json tensor_of(const std::string& flags) {
  return plan_of(shape + flags).at("tensor");
}

/// Elements of the model's parameters: those that ranks divide, and those that each has.
struct Elements {
  std::int64_t divided = 0, whole = 0;
};
Elements elements_of(const DecoderConfig& config, int rank, int ranks) {
  Elements count;
  for (const Parameter& p : Decoder(config, {.rank = rank, .size = ranks}).parameters())
    (p.shard.divided() ? count.divided : count.whole) += element_count(p.shape);
  return count;
}

const DecoderConfig even{
    .n_layer = 3, .n_head = 4, .n_embd = 64, .vocab_size = 96, .n_positions = 16};
const DecoderConfig five_heads{
    .n_layer = 3, .n_head = 5, .n_embd = 80, .vocab_size = 101, .n_positions = 16};

std::size_t bytes_of(const Json& shard, const char* use) {
  return shard.at("device_peak_by_use").at(use);
}

}  // namespace

TEST_CASE("parameters of the shards add up to the model's", "[tensor-plan]") {
  for (const DecoderConfig& config : {even, five_heads, DecoderConfig{}})
    for (const int ranks : {1, 2, 4}) {
      CAPTURE(config.n_head, ranks);
      Elements sum;
      std::int64_t most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Elements mine = elements_of(config, rank, ranks);
        sum.divided += mine.divided;
        sum.whole = mine.whole;
        most = std::max(most, mine.divided + mine.whole);
      }
      CHECK(sum.divided + sum.whole == config.parameter_count());
      CHECK(parameters_of_shard(config, ranks) == most);
    }
}

TEST_CASE("memory of divided matrices falls as the number of ranks", "[tensor-plan]") {
  // Wide enough that no share of a tensor leaves a gap behind it.
  const std::string wide =
      "--device cpu --precision fp32 --n-layer 3 --n-head 4 --n-embd 256 --vocab-size 256 "
      "--context 16 --sample-tokens 0 --batch-size 8 --micro-batch 2 --placement auto:none ";
  const DecoderConfig config{
      .n_layer = 3, .n_head = 4, .n_embd = 256, .vocab_size = 256, .n_positions = 16};
  const Json one = plan_of(wide).at("chosen"), two = plan_of(wide + "--tp 2").at("tensor"),
             four = plan_of(wide + "--tp 4").at("tensor");
  REQUIRE(two.at("shards").size() == 1);
  REQUIRE(four.at("shards").size() == 1);
  CHECK(two.at("shards")[0].at("ranks") == Json{0, 1});
  CHECK(two.at("shards")[0].at("host_bytes") == 0);
  CHECK(four.at("shards")[0].at("ranks") == Json{0, 1, 2, 3});
  // Gradient buffers that belong to no parameter come on top.
  std::int64_t sums[3], *next = sums;
  for (const int ranks : {1, 2, 4})
    *next++ = SpaceLayout(Decoder(config, {.size = ranks}).parameters(), {}).wide_size;
  CHECK(sums[0] - sums[1] == 2 * (sums[1] - sums[2]));
  CHECK(sums[1] - sums[2] == elements_of(config, 0, 4).divided);
  for (const char* use : {"weights", "state"}) {
    INFO(use);
    const auto b1 = one.at("device_peak_by_use").at(use).get<std::size_t>();
    const std::size_t b2 = bytes_of(two.at("shards")[0], use);
    const std::size_t b4 = bytes_of(four.at("shards")[0], use);
    CHECK(b4 < b2);
    CHECK(b2 < b1);
    // b(n) = whole + divided / n.
    CHECK(b1 - b2 == 2 * (b2 - b4));
    const Elements all = elements_of(config, 0, 4);
    const std::size_t each = std::string(use) == "state" ? 8 : 4;
    CHECK(b2 - b4 == each * static_cast<std::size_t>(all.divided));
  }
  CHECK(four.at("shards")[0].at("heads") == 1);
  CHECK(four.at("shards")[0].at("vocabulary") == 64);
  CHECK(four.at("shards")[0].at("parameters") == parameters_of_shard(config, 4));
}

TEST_CASE("uneven heads make shards of several sizes", "[tensor-plan]") {
  const std::string flags =
      "--device cpu --precision fp32 --n-layer 3 --n-head 5 --n-embd 80 --vocab-size 101 "
      "--context 16 --sample-tokens 0 --batch-size 8 --micro-batch 2 ";
  const Json two = plan_of(flags + "--tp 2").at("tensor").at("shards");
  REQUIRE(two.size() == 2);
  CHECK(two[0].at("heads") == 3);
  CHECK(two[1].at("heads") == 2);
  CHECK(two[0].at("vocabulary") == 51);
  const Json four = plan_of(flags + "--tp 4").at("tensor").at("shards");
  REQUIRE(four.size() == 2);
  CHECK(four[0].at("ranks") == Json{0});
  CHECK(four[1].at("ranks") == Json{1, 2, 3});
  CHECK(four[0].at("device_bytes") > four[1].at("device_bytes"));
  for (const Json& shards : {two, four}) {
    std::int64_t sum = 0, ranks = 0;
    for (const Json& shard : shards) {
      const auto alike = static_cast<std::int64_t>(shard.at("ranks").size());
      sum += alike * shard.at("parameters").get<std::int64_t>();
      ranks += alike;
    }
    CHECK(sum == five_heads.parameter_count() +
                     (ranks - 1) * elements_of(five_heads, 0, static_cast<int>(ranks)).whole);
  }
  // Each is what the planner's count says of a rank.
  const TrainConfig options =
      parsed(flags.substr(flags.find("--precision")) + "--tp 4 --placement auto:none");
  const RunSetup setup = resolve_shape(options, false, 0, "test");
  const DeviceProfile profile = machine(false);
  const MemoryChoice choice = plan_run(options, setup, profile).chosen.choice;
  const Json shards = to_json(tensor_report(options, setup, profile, choice).figures).at("shards");
  REQUIRE(shards.size() == 2);
  for (const Json& shard : shards)
    for (const int rank : shard.at("ranks"))
      CHECK(plan_memory(options, setup, choice, profile.workspace, {options.parallel.mesh(), rank})
                .high_water == shard.at("device_bytes"));
}

TEST_CASE("shards of any size are stored as the whole is", "[tensor-plan]") {
  // Some shards of 90 x 90 have as many elements as a large matrix; none of 80 x 80 has.
  for (const std::int64_t heads : {4, 5}) {
    const DecoderConfig config{.n_layer = 1,
                               .n_head = heads,
                               .n_embd = heads == 4 ? 80 : 90,
                               .vocab_size = 61,
                               .n_positions = 8};
    const SpaceLayout whole(Decoder(config).parameters(), {});
    for (const int rank : {0, 1}) {
      const SpaceLayout shard(Decoder(config, {.rank = rank, .size = 2}).parameters(), {});
      for (std::size_t i = 0; i < whole.slots.size(); ++i) {
        CAPTURE(whole.slots[i].name, rank);
        CHECK(shard.slots[i].bulk == whole.slots[i].bulk);
      }
    }
  }
}

TEST_CASE("micro-batches of divided tokens are those that divide", "[tensor-plan]") {
  const std::string odd =
      "--device cpu --precision fp32 --n-layer 3 --n-head 4 --n-embd 256 --vocab-size 96 "
      "--context 16 --seq-len 15 --sample-tokens 0 --placement auto:none --sequence-parallel "
      "--state-layout fp32 --gradients fp32 ";
  const auto chosen = [&](const std::string& flags) {
    const std::string all = plan_of(odd + flags).at("chosen").at("flags");
    return all.substr(0, all.find(" --placement"));
  };
  CHECK(chosen("--tp 2 --batch-size 6") == "--micro-batch 6");
  CHECK(chosen("--tp 4 --batch-size 36") == "--micro-batch 36");
  // The budget holds two sequences. Three do not divide (odd length), nor does one if less fits.
  const Json two = plan_of(odd + "--tp 2 --batch-size 6 --micro-batch 2");
  const auto bytes = two.at("tensor").at("shards")[0].at("device_bytes").get<std::size_t>() +
                     two.at("device_reserve_bytes").get<std::size_t>();
  const auto within = [&](std::size_t memory) {
    return "--tp 2 --batch-size 6 --host-memory " + std::to_string(memory);
  };
  CHECK(chosen(within(bytes)) == "--micro-batch 2");
  CHECK(run_program("plan", words(odd + within(bytes - 1))).exit_code == 2);
  const ProgramResult none = run_program("plan", words(odd + "--tp 4 --batch-size 6"));
  CHECK(none.exit_code == 2);
  CHECK_THAT(none.err, Contains("a batch of 6 x 15 = 90 tokens does not divide by --tp 4"));
}

TEST_CASE("what shards send is what a hand counts", "[tensor-plan]") {
  // 4 micro-batches of 2 x 16 tokens, 3 blocks, width 64, 4 bytes.
  constexpr std::uint64_t sum = 32 * 64 * 4, softmax = 32 * 3 * 4;
  const auto counts = [](const Json& traffic, const char* kind, std::int64_t operations,
                         std::uint64_t bytes) {
    INFO(kind);
    CHECK(traffic.at(kind).at("operations") == operations);
    CHECK(traffic.at(kind).at("bytes") == bytes);
  };
  const Json plain = tensor_of("--tp 4 --placement auto:none");
  CHECK(plain.at("sum_bytes") == sum);
  const Json& one = plain.at("traffic")[0];
  counts(one, "sums_forward", 4 * 7, 4 * 7 * sum);
  counts(one, "sums_again", 0, 0);
  counts(one, "sums_backward", 4 * 6, 4 * 6 * sum);
  counts(one, "sums_head", 4, 4 * sum);
  counts(one, "softmax_gathers", 4, 4 * 4 * softmax);
  // 2 * 3/4 of what is added up, 3/4 of what is gathered.
  CHECK(one.at("bytes_sent") == 4 * 14 * sum * 3 / 2 + 4 * 4 * softmax * 3 / 4);
  CHECK(one.at("exposed_seconds") > 0);
  CHECK(one.at("exposed_seconds") <= one.at("seconds"));
  counts(tensor_of("--tp 4 --placement auto:block*2,auto:none").at("traffic")[0], "sums_again",
         4 * 4, 4 * 4 * sum);
  counts(tensor_of("--tp 4 --placement auto:gelu+ln").at("traffic")[0], "sums_again", 0, 0);

  const Json piped = tensor_of("--tp 2 --pp 2 --placement auto:none").at("traffic");
  REQUIRE(piped.size() == 2);
  CHECK(piped[0].at("ranks") == Json{0, 1});
  CHECK(piped[1].at("ranks") == Json{2, 3});
  counts(piped[0], "sums_forward", 4 * 5, 4 * 5 * sum);
  counts(piped[1], "sums_forward", 4 * 2, 4 * 2 * sum);
  counts(piped[0], "sums_head", 0, 0);
  counts(piped[1], "sums_head", 4, 4 * sum);
  counts(piped[0], "softmax_gathers", 0, 0);
  counts(piped[1], "softmax_gathers", 4, 4 * 2 * softmax);
  const Json stashed =
      tensor_of("--tp 2 --pp 2 --placement auto:block --stash input").at("traffic");
  counts(stashed[0], "sums_forward", 4 * 5, 4 * 5 * sum);
  counts(stashed[0], "sums_again", 4 * (5 + 4), 4 * 9 * sum);
  // The last stage goes forward once, and its blocks once more.
  counts(stashed[1], "sums_again", 4 * 2, 4 * 2 * sum);
  // So the first stage waits for its forward sums twice, and the last stage once.
  const Json kept_graph = tensor_of("--tp 2 --pp 2 --placement auto:block").at("traffic");
  CHECK(stashed[0].at("exposed_seconds") > kept_graph[0].at("exposed_seconds"));
  CHECK(stashed[1].at("exposed_seconds") == kept_graph[1].at("exposed_seconds"));

  // Tokens are divided: 6 products and the head; in the backward pass the 6 inputs once more, and
  // the gradients of the 6 outputs and the embedding. 7 norms of 2 x 64.
  const Json divided = tensor_of("--tp 4 --placement auto:none --sequence-parallel");
  CHECK(divided.at("divides_tokens") == true);
  const Json& each = divided.at("traffic")[0];
  counts(each, "sums_forward", 4 * 7, 4 * 7 * sum);
  counts(each, "sums_backward", 4 * 6, 4 * 6 * sum);
  counts(each, "sums_head", 4, 4 * sum);
  counts(each, "stream_gathers", 4 * (7 + 13), 4 * 20 * sum);
  counts(each, "norm_gradients", 4 * 7, 4 * 7 * 2 * 64 * 4);
  counts(each, "softmax_gathers", 4, 4 * 4 * softmax);
  CHECK(each.at("bytes_sent") == 3 * (14 * sum + 20 * sum + 2 * 7 * 2 * 64 * 4 + 4 * softmax));

  // More tokens than are predicted at a time: 2 x 768 in chunks of 1024.
  const MemoryChoice kept{.placement = {.blocks = std::vector<Placement>(3)}};
  const TensorTraffic chunks = tensor_traffic(
      even, {0, 3}, kept,
      {.shards = {2}, .rows = 2, .seq_len = 768, .dtype = DType::bf16, .micro_batches = 5});
  CHECK(chunks.softmax == TensorTraffic::Kind{5 * 2, 5 * 2 * 1536 * 3 * 4});
  CHECK(chunks.sums.head == TensorTraffic::Kind{5, 5 * 1536 * 64 * 2});
  CHECK(tensor_traffic(even, {0, 3}, kept, {.rows = 2, .seq_len = 768}).all() ==
        TensorTraffic::Kind{});
}

TEST_CASE("matrix products are divided, waits for other ranks come on top", "[tensor-plan]") {
  const MemoryChoice choice{.micro_batch = 4, .placement = {.blocks = std::vector<Placement>(3)}};
  DeviceProfile profile = machine(true);
  profile.multiprocessors = 0;  // any product fills it
  StepWork work{.batch = 8, .seq_len = 16};
  const StepTime alone = predict_step(even, choice, work, profile);
  CHECK(alone.tensor == 0);
  work.shards = {4, {.bandwidth = 1e30, .latency = 0}};
  const StepTime quarter = predict_step(even, choice, work, profile);
  CHECK(quarter.forward == Approx(alone.forward / 4));
  CHECK(quarter.tensor == Approx(0).margin(1e-15));
  CHECK(quarter.update < alone.update);
  // 7 sums forward, one of the head; those of backward hide where products are long.
  work.shards.link = {.bandwidth = 1e9, .latency = 1e-3};
  const double sum = 2 * 3 * 1e-3 + 1.5 * 64 * 64 * 4 / 1e9;
  const double gather = 3 * 1e-3 + 0.75 * 64 * 3 * 4 * 4 / 1e9;
  profile.wide_flops = 1;
  CHECK(predict_step(even, choice, work, profile).tensor == Approx(2 * (8 * sum + gather)));
  profile.wide_flops = 1e30;
  CHECK(predict_step(even, choice, work, profile).tensor == Approx(2 * (14 * sum + gather)));
  // Half of the weight's product hides a sum in between: attention 2 * 64 * 48, MLP 2 * 64 * 64.
  profile.wide_flops = 64 * 2 * 64 * 64 / sum;
  CHECK(predict_step(even, choice, work, profile).tensor ==
        Approx(2 * (8 * sum + gather + 3 * sum * (1 - 0.375) + 3 * sum * 0.5)));
  // Divided tokens: half as much for each sum, and as much for each of 7 inputs, then 13 more.
  StepWork divided = work;
  divided.shards.divide_tokens = true;
  profile.wide_flops = 1;
  const double norm = 2 * 3 * 1e-3 + 1.5 * 2 * 64 * 4 / 1e9;
  CHECK(predict_step(even, choice, divided, profile).tensor ==
        Approx(2 * (8 * sum / 2 + 20 * sum / 2 + 7 * norm + gather)));
  profile.wide_flops = 64 * 2 * 64 * 64 / sum;
  MemoryChoice again = choice;
  again.placement.blocks[1].recompute = Recompute::block;
  CHECK(predict_step(even, again, work, profile).tensor -
            predict_step(even, choice, work, profile).tensor ==
        Approx(2 * 2 * sum));
  // The parts of a pipeline take as long as the whole.
  const PartTime whole = predict_part(even, {0, 3}, choice, work, profile);
  CHECK(2 * (whole.forward_tensor + whole.backward_tensor) ==
        Approx(predict_step(even, choice, work, profile).tensor));
  double sum_of_parts = 0;
  for (const DecoderPart& part : {DecoderPart{0, 1}, DecoderPart{1, 3}}) {
    const PartTime time = predict_part(even, part, choice, work, profile);
    sum_of_parts += time.forward + time.backward;
  }
  CHECK(sum_of_parts < whole.forward + whole.backward);
  CHECK(sum_of_parts > (whole.forward + whole.backward) * 0.99);
}

TEST_CASE("groups that do not fit evenly into nodes use the network", "[tensor-plan]") {
  const Interconnect joined{.link = {300e9, 3e-6}, .network = {12e9, 1e-5}, .ranks_per_node = 8};
  for (const std::int64_t ranks : {1, 2, 4, 8})
    CHECK(joined.among_neighbours(ranks, 4096).bandwidth == 300e9);
  CHECK(joined.among_neighbours(3, 6).bandwidth == 300e9);
  CHECK(joined.among_neighbours(3, 9).bandwidth == 1.5e9);
  CHECK(joined.among_neighbours(16, 16).bandwidth == 1.5e9);
  Interconnect rings = joined;
  rings.rings = true;
  CHECK(rings.among_neighbours(8, 64).bandwidth == 300e9);
  CHECK(rings.among_neighbours(16, 64).bandwidth == 12e9);
  CHECK(rings.among_neighbours(5, 40).bandwidth == 6e9);  // of ranks 8 to 15 two groups go on
  CHECK(rings.among_neighbours(12, 24).bandwidth == 6e9);
  CHECK(joined.between(6, 7).bandwidth == 300e9);
  CHECK(joined.between(7, 8).bandwidth == 1.5e9);
  CHECK(joined.between(7, 8).seconds(3e9) == Approx(2 + 1e-5));
  const Json inside = tensor_of("--tp 4"), across = tensor_of("--tp 4 --ranks-per-node 2");
  CHECK(across.at("link").at("bytes_per_second") < inside.at("link").at("bytes_per_second"));
  CHECK(across.at("traffic")[0].at("seconds") > inside.at("traffic")[0].at("seconds"));
}

TEST_CASE("a plan of a pipeline lists every shard of every stage", "[tensor-plan]") {
  const Json json = plan_of(shape + "--tp 2 --pp 2 --dp 2");
  const Json& ranks = json.at("pipeline").at("ranks");
  REQUIRE(ranks.size() == 4);
  CHECK_THAT(json.at("command").get<std::string>(), Contains(" -n 8 "));
  CHECK(ranks[1].at("stages") == Json{0});
  CHECK(ranks[2].at("stages") == Json{1});
  CHECK(json.at("pipeline").at("stages")[1].at("rank") == 2);
  CHECK(json.at("pipeline").at("tied_table").at("ranks") == Json{0, 2});
  CHECK(json.at("pipeline").at("tied_table").at("bytes_each_way") == 48 * 64 * 4);
  std::int64_t sum = 0;
  for (const Json& rank : ranks)
    sum += rank.at("parameters").get<std::int64_t>();
  // Both ends have the table.
  CHECK(sum == even.parameter_count() + 96 * 64 + elements_of(even, 0, 2).whole);
  CHECK(ranks[0].at("device_bytes") == ranks[1].at("device_bytes"));
  CHECK_FALSE(json.at("tensor").contains("shards"));
  CHECK(
      json.at("pipeline").at("compute_seconds") >
      plan_of(shape + "--tp 2 --pp 2 --dp 2 --link 11.8GB,0").at("pipeline").at("compute_seconds"));
  const std::string text = run_well("plan", words(shape + "--tp 2 --pp 2"));
  CHECK_THAT(text, Contains("rows are those of the first of 2 ranks that divide"));
  CHECK_THAT(text, Contains("tensor       2 ranks divide the matrices"));
  CHECK_THAT(run_well("plan", words(shape + "--tp 2")), Contains(", other shards "));
  CHECK_THAT(run_well("plan", words(shape)), !Contains("shards"));
}

TEST_CASE("plans with --tp that cannot be are refused", "[tensor-plan]") {
  const auto refused = [](const std::string& flags, const std::string& why) {
    INFO(flags);
    const ProgramResult result = run_program("plan", words(shape + flags));
    CHECK(result.exit_code == 2);
    CHECK(count_lines(result.err) == 1);
    CHECK_THAT(result.err, Contains(why));
  };
  refused("--tp 2 --scaling", "--scaling predicts data parallelism alone; leave --tp out");
  refused("--tp 8", "the model has 4 heads");
  refused("--tp 3", "the MLP is 256 wide");
  refused("--tp 2 --state-layout int8", "int8");
  refused("--tp 2 --optimizer adafactor", "adafactor");
  // The planner finds nothing where only int8 would fit.
  const auto fits = [](const std::string& flags) {
    return plan(
        small_shape + " --micro-batch 1 --precision bf16 --placement resident:block" + flags, true);
  };
  const std::string plenty = budget(1 << 30, 1 << 30, true), least = " --gradients bf16";
  const auto device = [&](const std::string& flags) {
    return need_of(fits(flags + least + plenty).chosen, true).device;
  };
  const std::size_t narrow = device(" --state-layout bf16mv");
  REQUIRE(device(" --state-layout int8") < narrow);
  CHECK(fits(budget(narrow - 1, 1 << 30, true)).chosen.choice.layout == StateLayout::int8);
  const std::size_t shard = device(" --tp 2 --state-layout bf16mv");
  CHECK(fits(" --tp 2" + budget(shard, 1 << 30, true)).chosen.choice.layout == StateLayout::bf16mv);
  CHECK_THROWS(fits(" --tp 2" + budget(shard - 1, 1 << 30, true)));
}

}  // namespace sluice::test::tensor_plan_test
