#include "apps/plan/generation_plan.h"

#include "apps/checkpoint/model_folder.h"
#include "kernels/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/gpu/gpu.h"

// Text is generated with as much GPU memory as was planned, and the weights of blocks that do not
// fit visit the GPU.

namespace sluice::test::generation_plan_test {
namespace {

std::vector<std::int32_t> ids(std::size_t count) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>(11 * i % 101));
  return ids;
}

LoadedModel initialized(const DecoderConfig& config, const DevicePtr& device, DType dtype,
                        const VisitingBlocks& visiting) {
  LoadedModel made = make_model(config, device, dtype, ParameterSpace::Use::inference, visiting);
  made.space->initialize(5);
  return made;
}

}  // namespace

TEST_CASE("a text takes the planned bytes and has the same tokens from any place", "[generation]") {
  if (!have_gpu()) return;
  for (const auto& [dtype, cached, tokens] :
       {std::tuple(DType::f32, true, 12), {DType::bf16, true, 40}, {DType::f32, false, 30}}) {
    CAPTURE(name_of(dtype), cached, tokens);
    const DecoderConfig config{
        .n_layer = 5, .n_head = 2, .n_embd = 64, .vocab_size = 101, .n_positions = 24};
    const Generation options{.max_tokens = tokens, .sampling = {.seed = 3}, .use_cache = cached};
    const std::size_t workspace = open_gpu(1)->runtime().workspace_bytes();
    const GenerationTask task{config, dtype, 7, options, workspace};
    const GenerationPlan whole = plan_generation(task, std::size_t{1} << 40);
    CHECK(whole.host_blocks == 0);
    CHECK(whole.copied_per_token == 0);
    const auto generated = [&](const GenerationPlan& plan, std::uint64_t seed) {
      const DevicePtr device = open_gpu(seed, plan.device);
      const LoadedModel made = initialized(
          config, device, dtype,
          {.host_blocks = plan.host_blocks, .host = make_host_memory(device, plan.host)});
      const std::vector<std::int32_t> made_ids = generate(*made.model, device, ids(7), options);
      CHECK(device->arena().high_water() == plan.device);
      return made_ids;
    };
    const std::vector<std::int32_t> expected = generated(whole, 1);
    CHECK(expected.size() == static_cast<std::size_t>(tokens));
    std::int64_t blocks = 0;
    for (std::size_t allowed = whole.device; blocks < 5;) {
      const GenerationPlan plan = plan_generation(task, --allowed);
      CAPTURE(plan.host_blocks, plan.device);
      CHECK(plan.device <= allowed);
      CHECK(plan.host_blocks > blocks);
      // The token before has left one of three blocks in its place.
      const auto copies = static_cast<std::uint64_t>(plan.host_blocks == 3 ? 2 : plan.host_blocks);
      CHECK(plan.copied_per_token == copies * 12 * 64 * 64 * size_of(dtype));
      CHECK(generated(plan, static_cast<std::uint64_t>(plan.host_blocks) + 1) == expected);
      blocks = plan.host_blocks;
      allowed = plan.device;
    }
    const GenerationPlan least = plan_generation(task, whole.device - 1);
    CHECK(least.host_blocks < 5);
    const std::string refusal = error_message([&] { plan_generation(task, 1 << 20); });
    CHECK_THAT(refusal, Contains("with the weights of all blocks in host memory") &&
                            Contains("workspace") && Contains("--context"));
  }
}

TEST_CASE("a text takes the planned bytes whatever its prompt's length", "[generation]") {
  if (!have_gpu()) return;
  const std::size_t workspace = open_gpu(1)->runtime().workspace_bytes();
  for (const std::int64_t context : {1, 2, 9})
    for (const std::size_t count : {1u, 2u, 8u, 9u, 10u, 30u})
      for (const std::int64_t tokens : {1, 2, 9})
        for (const bool cached : {true, false}) {
          CAPTURE(context, count, tokens, cached);
          const DecoderConfig config{
              .n_layer = 2, .n_head = 2, .n_embd = 16, .vocab_size = 101, .n_positions = context};
          const Generation options{.max_tokens = tokens, .use_cache = cached};
          const GenerationPlan plan = plan_generation(
              {config, DType::f32, count, options, workspace}, std::size_t{1} << 40);
          const DevicePtr device = open_gpu(2, plan.device);
          const LoadedModel made = initialized(config, device, DType::f32, {});
          CHECK(generate(*made.model, device, ids(count), options).size() ==
                static_cast<std::size_t>(tokens));
          CHECK(device->arena().high_water() == plan.device);
        }
}

TEST_CASE("texts that are generated together take the planned bytes", "[generation]") {
  if (!have_gpu()) return;
  const std::size_t workspace = open_gpu(1)->runtime().workspace_bytes();
  for (const std::size_t count : {1u, 5u, 12u})
    for (const std::int64_t tokens : {1, 2, 9}) {
      CAPTURE(count, tokens);
      const DecoderConfig config{
          .n_layer = 2, .n_head = 2, .n_embd = 16, .vocab_size = 101, .n_positions = 9};
      const Generation options{.max_tokens = tokens};
      GenerationTask task{config, DType::f32, count, options, workspace};
      const std::size_t alone = plan_generation(task, std::size_t{1} << 40).device;
      task.at_once = 3;
      const GenerationPlan plan = plan_generation(task, std::size_t{1} << 40);
      CHECK(plan.device > alone);
      const DevicePtr device = open_gpu(2, plan.device);
      const LoadedModel made = initialized(config, device, DType::f32, {});
      std::size_t drawn = 0;
      const GenerationRequest request{.prompt = ids(count),
                                      .options = options,
                                      .on_token =
                                          [&](std::int32_t) {
                                            ++drawn;
                                            return true;
                                          },
                                      .on_end = {}};
      generate_many(*made.model, device, std::vector(5, request), 3);
      CHECK(drawn == 5 * static_cast<std::size_t>(tokens));
      CHECK(device->arena().high_water() == plan.device);
    }
}

}  // namespace sluice::test::generation_plan_test
