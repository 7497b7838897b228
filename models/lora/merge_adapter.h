#pragma once

#include <filesystem>

#include "kernels/base/dtype.h"
#include "models/decoder/config.h"
#include "optim/space/parameter_space.h"

namespace sluice {

/// Adds an adapter's changes to the weights of `space`, a model without adapters. Returns the part
/// of the changes that is lost where the sums are stored as `stored_as`: the norm of what rounding
/// moves, over the norm of the changes. Throws Error (usage), naming the tensor, if the adapter is
/// of another model.
double merge_adapter(const std::filesystem::path& folder, const DecoderConfig& config,
                     ParameterSpace& space, DType stored_as);

}  // namespace sluice
