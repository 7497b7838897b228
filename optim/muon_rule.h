#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "optim/newton_schulz.h"
#include "optim/space/space_layout.h"
#include "optim/update_rule.h"

namespace sluice {

/// The factor, beside the rate, of the orthogonalized direction of a matrix with `out` outputs and
/// `in` inputs.
enum class MuonScale : std::uint8_t {
  shape,  ///< sqrt(max(1, out / in)): Jordan and others, 2024
  rms,    ///< 0.2 sqrt(max(out, in)), so that a change is about AdamW's: Liu and others, 2025
          ///< (https://arxiv.org/abs/2502.16982), equation 4
};

struct MuonOptions {
  double momentum = 0.95;
  double weight_decay = 0.1;
  MuonScale scale = MuonScale::shape;
  /// Rate of the orthogonalized matrices, as a multiple of the rate of a step.
  double rate_factor = 1;
  AdamWOptions adamw{};  ///< for all other parameters
  /// DType of the matrix products: f32, bf16, or f64 with f64 weights.
  DType products = DType::f32;
  bool tf32 = false;   ///< as in Gemm
  SumOverRanks sum{};  ///< needed if ranks divide matrices
};
/// Muon for the matrices of hidden layers (Chunk::hidden), AdamW for embeddings, head, norms and
/// biases. A matrix that files keep in parts, such as q, k and v, is orthogonalized part by part.
/// Ranks that divide a matrix orthogonalize the whole of it together, and its scale is that of the
/// whole. Works only with a space of whole tensors.
std::unique_ptr<UpdateRule> muon_rule(const MuonOptions& options);

/// DType of Muon's matrix products for working weights of this one.
DType muon_products(DType working);
/// The iterations of one update of all matrices in such a space, in order.
std::vector<NewtonSchulz> muon_iterations(const SpaceLayout& layout, DType working);

}  // namespace sluice
