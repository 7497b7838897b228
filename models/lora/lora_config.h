#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// The low-rank adapters of a model (Hu et al., "LoRA: Low-rank adaptation of large language
/// models", 2022): a layer W x + b of those that are adapted computes
/// W x + b + (alpha / rank) B A dropout(x), with A: [rank, inputs] and B: [outputs, rank]. Only A
/// and B are trained.
struct LoraConfig {
  std::int64_t rank = 0;  ///< 0: the model has no adapters
  double alpha = 0;
  double dropout = 0;  ///< probability, in training
  /// Ends of the names of the layers that are adapted, as PEFT takes them: "c_attn" or
  /// "attn.c_proj".
  std::vector<std::string> targets{};

  /// The model's own matrices in its blocks are kept as 8-bit integers, to save memory.
  bool int8_base = false;

  double scale() const { return alpha / static_cast<double>(rank); }
  /// `layer`: a name such as "h.0.attn.c_attn".
  bool adapts(std::string_view layer) const;

  bool operator==(const LoraConfig&) const = default;
};

}  // namespace sluice
