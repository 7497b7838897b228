#include "apps/plan/cost/cost_model.h"
#include "tests/support/catch.h"

// A step's predicted time, counted by hand for a model of a few numbers.

namespace sluice::test::cost_model_test {
namespace {

// Parameters: 2 * (3 + 4) in the tables; 2 * 6 + 2 * 2 + 2 * 8 + 8 * 2 = 48 in the matrices of the
// block and 6 + 2 + 8 + 2 = 18 in their biases; 3 * 4 in the LayerNorms; 92 in all.
// Forward per token: 2 operations for each of the 48 weights, 2 * 4 * 2 for attention to 4
// positions, of which half count; 2 * 3 * 2 in the head; 124 in all, 112 of them in the block.
const DecoderConfig tiny{.n_layer = 1, .n_head = 1, .n_embd = 2, .vocab_size = 3, .n_positions = 4};

/// Sixteen tokens, of which eight at a time.
constexpr StepWork work{.batch = 4, .seq_len = 4, .dtype = DType::f32, .resident_state = 184};

/// A device without multiprocessors is never idle.
DeviceProfile machine(double flops) {
  return {.wide_flops = flops,
          .memory_rate = 368,
          .to_device_rate = 64.0 / 5,
          .to_host_rate = 64.0 / 3};
}

MemoryChoice two_micro_batches(Recompute recompute) {
  return {.micro_batch = 2, .placement = {.blocks = {{.recompute = recompute}}}};
}

}  // namespace

TEST_CASE("a step's forward, backward and update are those counted by hand", "[plan]") {
  const StepTime time =
      predict_step(tiny, two_micro_batches(Recompute::none), work, machine(16 * 124));
  CHECK(time.forward == Approx(1));
  // Twice the forward pass, and the second micro-batch reads and writes 92 gradients of 4 bytes.
  CHECK(time.backward == Approx(2 + 92 * 8 / 368.0));
  // The state is read and written; gradients are read twice, weights read and written.
  CHECK(time.update == Approx((2 * 184 + 92 * 16) / 368.0));
  CHECK(time.recompute == 0);
  CHECK(time.stall == 0);
  CHECK(time.tensor == 0);
  CHECK(time.bytes_each_way == 0);
  CHECK(time.total() == Approx(1 + 4 + 5));
  // The eight tokens of a micro-batch in chunks of three read and write the table's 3 * 2 gradients
  // twice more.
  MemoryChoice chunks = two_micro_batches(Recompute::none);
  chunks.head_chunk = 3;
  CHECK(predict_step(tiny, chunks, work, machine(16 * 124)).backward ==
        Approx(2 + (92 + 2 * 2 * 6) * 8 / 368.0));
  // One micro-batch adds to no earlier gradients.
  MemoryChoice whole = two_micro_batches(Recompute::none);
  whole.micro_batch = 4;
  CHECK(predict_step(tiny, whole, work, machine(16 * 124)).backward == Approx(2));
}

TEST_CASE("a step waits for copies of block inputs as long as no pass of the block hides them",
          "[plan]") {
  const StepTime time =
      predict_step(tiny, two_micro_batches(Recompute::block_on_host), work, machine(8 * 112));
  CHECK(time.recompute == Approx(2));  // a second for each micro-batch
  // An input has 8 * 2 numbers of 4 bytes. Its way to the host takes 3 s beside a forward pass of
  // 1 s, its way back 5 s beside another one and a backward pass of two.
  CHECK(time.stall == Approx(2 * ((3 - 1) + (5 - 3))));
  CHECK(time.bytes_each_way == 2 * 64);
}

}  // namespace sluice::test::cost_model_test
