#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "engine/observer.h"
#include "models/decoder/names.h"
#include "optim/space/parameter_space.h"
#include "parallel/comm/communicator.h"

namespace sluice {

/// A place where a non-finite number was seen. Places are ordered so that a number comes before
/// those it may have spread to: weights, then the forward pass by ascending layer, then the
/// backward pass by descending layer.
struct Sighting {
  enum class Phase : std::int32_t { weights, forward, backward, nowhere };

  Phase phase = Phase::nowhere;
  std::int32_t layer = 0;   ///< order within the phase; negative in the backward pass
  std::int64_t number = 0;  ///< count of tensors this rank had considered before
  char text[160] = {};

  auto place() const { return std::tuple(phase, layer, number); }
};

/// Finds a rank's first non-finite number: among its weights, then among all results of the forward
/// and backward pass that it observes. It copies each tensor to the host in pieces and changes
/// nothing.
class Diagnosis final : public Observer {
 public:
  /// `names`: those of the model's family.
  Diagnosis(const ParameterSpace& space, const DecoderNames& names);

  void look_at_weights();
  void computed(const Node& node, std::span<Tensor* const> outputs) override;
  void handed_over(const Node& node, const Edge& to, const Tensor& gradient) override;

  /// Returns the first sighting of all ranks. All ranks call it together.
  Sighting first(Communicator& ranks) const;

 private:
  /// An op's position in the model: the module of its parameters, else the block of the op before
  /// it.
  struct Position {
    std::string name;
    std::int32_t layer = 0;
  };
  Position position_of(const Node& node) const;
  std::int32_t layer_of(std::string_view name) const;
  std::string_view name_of(const Edge& edge) const;
  void look(const Tensor& tensor, Sighting::Phase phase, std::int32_t layer,
            const std::string& what);

  const ParameterSpace& space_;
  const DecoderNames& family_;
  std::unordered_map<const TensorImpl*, std::string_view> names_;
  std::unordered_map<const Node*, Position> positions_;
  Position last_;
  std::int64_t looked_at_ = 0;
  Sighting found_;
};

/// Throws Error (numerical) on all ranks if any rank has a non-finite weight; called before a save.
/// No update may be under way.
void require_finite_weights(const ParameterSpace& space, const DecoderNames& names,
                            Communicator& ranks, std::int64_t step);

/// Returns true if no element is infinite or NaN.
bool all_finite(const Tensor& tensor);

}  // namespace sluice
