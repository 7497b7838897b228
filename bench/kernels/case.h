#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice::bench {

/// What a case is built for: a GPT-2, and how much of its work there is at one time.
struct Extent {
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t tokens = 1024;      ///< rows, a whole number of sequences
  std::int64_t positions = 1024;   ///< tokens of a sequence
  std::int64_t parameters = 1024;  ///< elements of the flat buffers
  static constexpr std::int64_t vocabulary = 50257;
  static constexpr std::int64_t vocabulary_stride = 50304;  ///< rows of logits are padded to this

  std::int64_t sequences() const { return tokens / positions; }
};

enum class Role {
  input,
  output,   ///< written whole: holds NaN before a checked run
  updated,  ///< read and written
  derived,  ///< written by Problem::prepare, then an input
};

/// How an operand starts. Never zeros: a GPU that multiplies zeros draws less power and clocks
/// higher than one at work. Logits spread as a trained model's do, so that some probabilities are
/// large and an error in any of them shows.
enum class Filling { normal, logits, positive, unit, tokens, one };

struct Operand {
  DType dtype;
  std::vector<std::int64_t> shape;
  Role role = Role::input;
  Filling filling = Filling::normal;
  std::int64_t row_stride = 0;  ///< elements between the rows of a matrix; 0: packed

  std::int64_t elements() const;  ///< those between its rows counted
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
  View view(std::byte* address) const;
};

using Operands = std::vector<View>;

/// One launch with everything that it needs, of a size and in a dtype.
struct Problem {
  std::string dimensions{};  ///< "16384x768"
  std::vector<Operand> operands{};
  std::function<void(const Operands&, Stream)> launch{};
  double bytes = 0;                                        ///< that must move, at the least
  double flops = 0;                                        ///< 0: nobody counts them
  std::function<void(const Operands&, Stream)> prepare{};  ///< makes what is derived
};

/// What is wanted on an H200: part of the copy bandwidth, or a rate.
struct Goal {
  double of_copy = 0;
  double tflop_per_s = 0;
};

enum class Ceiling { copy, gemm };

/// A way to use a kernel, at any size and in any dtype of its list.
struct Case {
  std::string op;
  std::string variant;
  std::vector<DType> dtypes;
  Ceiling ceiling = Ceiling::copy;
  std::function<Problem(const Extent&, DType)> make;
  Goal goal{};
  double error_factor = 1;                  ///< multiplies the dtype's error bound
  DType reference = DType::f64;             ///< what the CPU computes the reference in
  std::int64_t least_checked_tokens = 256;  ///< where the whole problem is too large to check
  /// Another library's, on a GPU only. What it cannot do is said, and is no failure of the program.
  bool baseline = false;
};

// One for each family of ops; all_cases joins them in this order.
void add_gemm_cases(std::vector<Case>& cases);
void add_attention_cases(std::vector<Case>& cases);
void add_norm_cases(std::vector<Case>& cases);
void add_elementwise_cases(std::vector<Case>& cases);
void add_head_cases(std::vector<Case>& cases);
void add_update_cases(std::vector<Case>& cases);
/// Where cuDNN was found at build time. None where there is no GPU, or with a note no library.
void add_cudnn_cases(std::vector<Case>& cases);
std::vector<Case> all_cases();

/// f32, bf16 and f16, as most kernels have them.
std::vector<DType> model_dtypes();
/// fp32, bf16, fp16, as --dtype names them.
std::string label_of(DType dtype);

double bytes_of(const std::vector<Operand>& operands);

}  // namespace sluice::bench
