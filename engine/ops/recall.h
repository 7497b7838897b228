#pragma once

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/autograd.h"

namespace sluice {

/// How a backward step gets a tensor of the forward pass back: it was kept, or it is computed again
/// from tensors that were, with the same bits.
class Recall {
 public:
  Recall() = default;
  explicit Recall(Tensor kept) : kept_(std::move(kept)) {}
  /// `from`: all that `compute` needs.
  Recall(std::vector<SavedTensor> from, std::function<Tensor()> compute)
      : from_(std::move(from)), compute_(std::move(compute)) {}

  explicit operator bool() const { return kept_ || compute_ != nullptr; }
  Tensor operator()() const { return kept_ ? kept_ : compute_(); }
  /// For Node::saved().
  std::vector<SavedTensor> saved(std::string_view name) const {
    return kept_ ? std::vector<SavedTensor>{{name, kept_}} : from_;
  }

 private:
  Tensor kept_;
  std::vector<SavedTensor> from_;
  std::function<Tensor()> compute_;
};

}  // namespace sluice
