#pragma once

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/autograd.h"

namespace sluice {

/// Gives a backward step a tensor of the forward pass: either the kept tensor, or the same bits
/// recomputed from other kept tensors.
class Recomputable {
 public:
  Recomputable() = default;
  explicit Recomputable(Tensor kept) : kept_(std::move(kept)) {}
  /// `from`: all the tensors that `compute` needs.
  Recomputable(std::vector<SavedTensor> from, std::function<Tensor()> compute)
      : from_(std::move(from)), compute_(std::move(compute)) {}

  explicit operator bool() const { return kept_ || compute_ != nullptr; }
  Tensor operator()() const { return kept_ ? kept_ : compute_(); }
  /// List of the kept tensors for Node::saved().
  std::vector<SavedTensor> saved(std::string_view name) const {
    return kept_ ? std::vector<SavedTensor>{{name, kept_}} : from_;
  }

 private:
  Tensor kept_;
  std::vector<SavedTensor> from_;
  std::function<Tensor()> compute_;
};

}  // namespace sluice
