#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "engine/observer.h"
#include "optim/parameter_space.h"
#include "parallel/communicator.h"

namespace sluice {

/// Where a number that is not finite was seen. Several places are compared by where one that has
/// spread from another cannot come first: weights, then forward by ascending layer, then backward
/// by descending layer.
struct Sighting {
  enum class Phase : std::int32_t { weights, forward, backward, nowhere };

  Phase phase = Phase::nowhere;
  std::int32_t layer = 0;   ///< in the order of the phase
  std::int64_t number = 0;  ///< of what has been looked at before, by this rank
  char text[160] = {};

  auto place() const { return std::tuple(phase, layer, number); }
};

/// Looks for the first number that is not finite among a rank's weights, and then among all that
/// its forward and backward pass computes while this looks on. What it looks at is copied to the
/// host in pieces and left as it is.
class Diagnosis final : public Observer {
 public:
  explicit Diagnosis(const ParameterSpace& space);

  void look_at_weights();
  void computed(const Node& node, std::span<Tensor* const> outputs) override;
  void handed_over(const Node& node, const Edge& to, const Tensor& gradient) override;

  /// The first one of all ranks, which call it together.
  Sighting first(Communicator& ranks) const;

 private:
  /// An op's place in the model: that of its parameters, or the block of the op before.
  struct Place {
    std::string name;
    std::int32_t layer = 0;
  };
  Place place_of(const Node& node) const;
  std::string_view name_of(const Edge& edge) const;
  void look(const Tensor& tensor, Sighting::Phase phase, std::int32_t layer,
            const std::string& what);

  const ParameterSpace& space_;
  std::unordered_map<const TensorImpl*, std::string_view> names_;
  std::unordered_map<const Node*, Place> places_;
  Place last_;
  std::int64_t looked_at_ = 0;
  Sighting found_;
};

/// Before they are saved: throws Error (numerical) on all ranks if a weight of one is not finite.
/// No update may be under way.
void require_finite_weights(const ParameterSpace& space, Communicator& ranks, std::int64_t step);

/// Whether no element is infinite or NaN.
bool all_finite(const Tensor& tensor);

}  // namespace sluice
