#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice::bench {

/// Size of the problem of a case: a GPT-2 model, and the amount of its work done at one time.
struct Extent {
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t tokens = 1024;      ///< rows; a whole number of sequences
  std::int64_t positions = 1024;   ///< tokens per sequence
  std::int64_t parameters = 1024;  ///< elements of the flat buffers
  static constexpr std::int64_t vocabulary = 50257;
  /// Padded row length of logits, and the rows of the table with its spare ones.
  static constexpr std::int64_t vocabulary_stride = 50304;

  std::int64_t sequences() const { return tokens / positions; }
  /// Heads of k and v where query heads share them, by four as in Llama or by five.
  std::int64_t key_value_heads() const { return heads / (heads % 4 == 0 ? 4 : 5); }
};

enum class Role {
  input,
  output,   ///< overwritten as a whole: holds NaN before a checked run
  updated,  ///< read and written
  derived,  ///< written by Problem::prepare, then an input
};

/// Initial contents of an operand. There are no zeros, because a GPU that multiplies zeros draws
/// less power and clocks higher than in real work. Logits are spread like a trained model's, so
/// that some probabilities are large and an error in any of them shows.
enum class Filling { normal, logits, positive, unit, tokens, codes, one };

struct Operand {
  DType dtype;
  std::vector<std::int64_t> shape;
  Role role = Role::input;
  Filling filling = Filling::normal;
  std::int64_t row_stride = 0;  ///< elements between the starts of a matrix's rows; 0: packed

  std::int64_t elements() const;  ///< includes the gaps between rows
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
  View view(std::byte* address) const;
};

using Operands = std::vector<View>;

/// One launch with everything that it needs, for one size and dtype.
struct Problem {
  std::string dimensions{};  ///< "16384x768"
  std::vector<Operand> operands{};
  std::function<void(const Operands&, Stream)> launch{};
  double bytes = 0;                                        ///< lower bound of the bytes to move
  double flops = 0;                                        ///< 0: not counted
  std::function<void(const Operands&, Stream)> prepare{};  ///< computes operands of role `derived`
};

/// Target on an H200: a fraction of the copy bandwidth, or a rate.
struct Goal {
  double of_copy = 0;
  double tflop_per_s = 0;
};

enum class Ceiling { copy, gemm };

/// One way to use a kernel, at any size and in any dtype of its list.
struct Case {
  std::string op;
  std::string variant;
  std::vector<DType> dtypes;
  Ceiling ceiling = Ceiling::copy;
  std::function<Problem(const Extent&, DType)> make;
  Goal goal{};
  double error_factor = 1;                  ///< multiplies the dtype's error bound
  DType reference = DType::f64;             ///< dtype of the CPU's reference
  std::int64_t least_checked_tokens = 256;  ///< if the whole problem is too large to check
  /// A kernel of another library, on a GPU only. Reports what it cannot do; that is no failure.
  bool baseline = false;
};

// There is one function per family of ops; all_cases joins them in this order.
void add_gemm_cases(std::vector<Case>& cases);
void add_attention_cases(std::vector<Case>& cases);
void add_norm_cases(std::vector<Case>& cases);
void add_elementwise_cases(std::vector<Case>& cases);
/// Adds the kernels that work on q, k and v where they lie side by side in a row.
void add_query_key_value_cases(std::vector<Case>& cases);
void add_head_cases(std::vector<Case>& cases);
void add_update_cases(std::vector<Case>& cases);
/// Adds cuDNN's cases if it was found at build time; none without a GPU, or if it cannot be opened.
void add_cudnn_cases(std::vector<Case>& cases);
std::vector<Case> all_cases();

/// Returns f32, bf16 and f16, which most kernels support.
std::vector<DType> model_dtypes();
/// Names a dtype as --dtype does: fp32, bf16, fp16.
std::string label_of(DType dtype);

double bytes_of(const std::vector<Operand>& operands);

}  // namespace sluice::bench
