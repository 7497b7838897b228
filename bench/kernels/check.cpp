#include "bench/kernels/check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "bench/kernels/buffers.h"

namespace sluice::bench {
namespace {

constexpr std::int64_t max_elements = std::int64_t{1} << 25;
constexpr double max_flops = 4e9;
/// Not a multiple of any vector width, so that a kernel's remainder loop is checked too.
constexpr std::int64_t max_parameters = (std::int64_t{1} << 22) + 1234567;

double bound_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 4e-3;
    case DType::f16:
      return 1e-3;
    default:
      return 1e-5;
  }
}

/// Halves the tokens of the extent while the problem is too large for the reference.
Extent checked_extent(const Case& item, Extent e) {
  e.parameters = std::min(e.parameters, max_parameters);
  while (e.tokens / 2 >= item.least_checked_tokens) {
    const Problem problem = item.make(e, item.reference);
    std::int64_t elements = 0;
    for (const auto& operand : problem.operands)
      elements += operand.elements();
    if (elements <= max_elements && problem.flops <= max_flops) break;
    if (e.sequences() > 1) {
      e.tokens = e.sequences() / 2 * e.positions;
    } else {
      e.tokens /= 2;
      e.positions = e.tokens;
    }
  }
  return e;
}

using Values = std::vector<std::optional<std::vector<double>>>;

void compare(const std::vector<double>& result, const std::vector<double>& reference,
             Deviation& deviation) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double off = result[i] - reference[i];
    difference += off * off;
    norm += reference[i] * reference[i];
  }
  const double rms = std::sqrt(norm / static_cast<double>(std::max<std::size_t>(result.size(), 1)));
  double worst = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double off = std::abs(result[i] - reference[i]);
    if (off != 0) worst = std::max(worst, off / (std::abs(reference[i]) + rms));
  }
  double error = difference > 0 ? std::sqrt(difference / norm) : 0;
  if (!std::isfinite(difference)) error = worst = std::numeric_limits<double>::infinity();
  deviation.error = std::max(deviation.error, error);
  deviation.worst = std::max(deviation.worst, worst);
}

/// Runs the problem and returns its outputs. `inputs` are copied to it; inputs that are still empty
/// are copied from it instead.
Values outcome(const Problem& problem, const DevicePtr& device, Values& inputs) {
  Buffers buffers(device, problem, 1);
  const std::size_t count = problem.operands.size();
  inputs.resize(std::max(inputs.size(), count));
  for (std::size_t i = 0; i < count; ++i) {
    const Role role = problem.operands[i].role;
    if (role != Role::input && role != Role::updated) {
      buffers.poison(i);
    } else if (inputs[i]) {
      buffers.upload(i, *inputs[i]);
    } else {
      inputs[i] = buffers.download(i);
    }
  }
  const Stream stream = device->stream();
  if (problem.prepare) problem.prepare(buffers.operands(0), stream);
  problem.launch(buffers.operands(0), stream);
  device->runtime().synchronize(stream);
  Values written(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Role role = problem.operands[i].role;
    if (role == Role::output || role == Role::updated) written[i] = buffers.download(i);
  }
  return written;
}

}  // namespace

Deviation check_case(const Case& item, const Extent& extent, DType dtype, const DevicePtr& device,
                     const DevicePtr& host) {
  const Extent smaller = checked_extent(item, extent);
  Values inputs;
  const Values results = outcome(item.make(smaller, dtype), device, inputs);
  const Values references = outcome(item.make(smaller, item.reference), host, inputs);
  Deviation deviation{.bound = bound_of(dtype) * item.error_factor, .tokens = smaller.tokens};
  for (std::size_t i = 0; i < results.size(); ++i)
    if (results[i]) compare(*results[i], *references[i], deviation);
  return deviation;
}

}  // namespace sluice::bench
