#include "models/lora/merge_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "engine/io/json_document.h"
#include "engine/io/safetensors.h"
#include "engine/io/stored_tensor.h"
#include "kernels/base/error.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "models/decoder/names.h"
#include "models/lora/adapter_file.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr Stream host_stream{{DeviceKind::cpu, 0}, 0};

View host_view(std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::f32, {rows, columns}};
}
View host_view(std::vector<float>& values) {
  return {reinterpret_cast<std::byte*>(values.data()),
          DType::f32,
          {static_cast<std::int64_t>(values.size())}};
}
View host_view(std::vector<std::byte>& values, DType dtype) {
  return {values.data(), dtype, {static_cast<std::int64_t>(values.size() / size_of(dtype))}};
}

void cast(const View& from, const View& to) {
  run(Cast{.out = to, .in = from}, host_stream);
}

std::vector<float> floats_of(const SafetensorsReader& reader, const StoredTensor& tensor) {
  const std::int64_t count = element_count(tensor.shape);
  std::vector<float> values(static_cast<std::size_t>(count));
  read_floats(reader, tensor, 0, count, DType::f32,
              [&](std::int64_t first, std::span<std::byte> bytes) {
                std::ranges::copy(bytes, std::as_writable_bytes(std::span(values)).begin() +
                                             first * static_cast<std::int64_t>(sizeof(float)));
              });
  return values;
}

/// One layer's matrices.
struct Pair {
  std::int64_t rank, inputs, outputs;
  std::vector<float> a, b;
};

/// The sizes of the changes and of what rounding moves.
struct Loss {
  double changes = 0, moved = 0;  ///< sums of squares

  double part() const { return changes > 0 ? std::sqrt(moved / changes) : 0; }
};

/// Adds scale * B A to a weight that lies in the space from element `first` on, some rows at a
/// time. `what`: for errors.
void add_change(ParameterSpace& space, std::int64_t first, WeightLayout layout, Pair& pair,
                double scale, DType stored_as, Loss& loss, const std::string& what) {
  const bool in_out = layout == WeightLayout::in_out;
  const std::int64_t rows = in_out ? pair.inputs : pair.outputs;
  const std::int64_t columns = in_out ? pair.outputs : pair.inputs;
  const std::int64_t piece = std::max<std::int64_t>(1, (std::int64_t{1} << 22) / columns);
  const DType dtype = space.weight_dtype();
  const View a = host_view(pair.a, pair.rank, pair.inputs);
  const View b = host_view(pair.b, pair.outputs, pair.rank);
  for (std::int64_t row = 0; row < rows; row += piece) {
    const std::int64_t count = std::min(piece, rows - row);
    const auto elements = static_cast<std::size_t>(count * columns);
    std::vector<float> change(elements), sum(elements), rounded(elements);
    // The rows come from some columns of A and all of B, or from some rows of B and all of A.
    View left = in_out ? a : b;
    left.address += (in_out ? row : row * pair.rank) * static_cast<std::int64_t>(sizeof(float));
    left.shape[in_out ? 1 : 0] = count;
    run(Gemm{.out = host_view(change, count, columns),
             .a = left,
             .b = in_out ? b : a,
             .transpose_a = in_out,
             .transpose_b = in_out},
        host_stream);
    const std::int64_t from = first + row * columns;
    std::vector<std::byte> stored(elements * size_of(dtype));
    space.read_weights(from, stored);
    cast(host_view(stored, dtype), host_view(sum));
    for (std::size_t i = 0; i < elements; ++i) {
      const double added = scale * static_cast<double>(change[i]);
      sum[i] = static_cast<float>(static_cast<double>(sum[i]) + added);
      loss.changes += added * added;
    }
    for (const DType kept : {dtype, stored_as})
      require_held(std::as_bytes(std::span(sum)), DType::f32, stored_type(kept), row * columns,
                   what);
    std::vector<std::byte> narrow(elements * size_of(stored_as));
    cast(host_view(sum), host_view(narrow, stored_as));
    cast(host_view(narrow, stored_as), host_view(rounded));
    for (std::size_t i = 0; i < elements; ++i) {
      const double moved = static_cast<double>(rounded[i]) - static_cast<double>(sum[i]);
      loss.moved += moved * moved;
    }
    cast(host_view(sum), host_view(stored, dtype));
    space.write_weights(from, stored);
  }
}

}  // namespace

double merge_adapter(const fs::path& folder, const DecoderConfig& config, ParameterSpace& space,
                     DType stored_as) {
  const PeftConfig adapter = read_adapter(folder, config);
  const DecoderNames& names = names_of(config.family);
  const SafetensorsReader reader(folder / adapter_weights_file);
  std::set<std::string> left;
  for (const StoredTensor& tensor : reader.tensors())
    left.insert(tensor.name);
  Loss loss;
  for (const StoredTensor& tensor : reader.tensors()) {
    const std::string layer = adapted_layer(tensor.name, names.adapter_prefix());
    if (layer.empty()) continue;
    std::string other = tensor.name;
    other[other.rfind(".lora_A.") + 6] = 'B';
    const StoredTensor* const b = reader.find(other);
    if (b == nullptr)
      refuse_adapter(reader.path(), fmt::format("tensor {} is missing", quote(other)));
    for (const auto& slot : space.slots())
      for (const StoredSlice& slice : slot.stored()) {
        if (slice.name != layer + ".weight" || slice.shape.size() != 2) continue;
        const bool in_out = slot.in_out;
        const std::int64_t inputs = slice.shape[in_out ? 0 : 1];
        const std::int64_t outputs = slice.shape[in_out ? 1 : 0];
        const std::int64_t rank = adapter.lora.rank;
        if (tensor.shape != Shape{rank, inputs} || b->shape != Shape{outputs, rank})
          refuse_adapter(
              reader.path(),
              fmt::format("the adapter of {} has shapes {} and {}, and rank {} of this model's "
                          "layer implies {} and {}; it is of another model",
                          quote(layer), to_string(tensor.shape), to_string(b->shape), rank,
                          to_string(Shape{rank, inputs}), to_string(Shape{outputs, rank})));
        Pair pair{rank, inputs, outputs, floats_of(reader, tensor), floats_of(reader, *b)};
        add_change(space, slot.offset + slice.first,
                   in_out ? WeightLayout::in_out : WeightLayout::out_in, pair, adapter.lora.scale(),
                   stored_as, loss,
                   fmt::format("{}: tensor {} with this change", reader.path().string(),
                               quote(slice.name)));
        left.erase(tensor.name);
        left.erase(other);
      }
  }
  if (!left.empty())
    refuse_adapter(reader.path(),
                   fmt::format("tensor {} belongs to no layer of this {} of {} blocks; the "
                               "adapter is of another model",
                               quote(*left.begin()), names.title, config.n_layer));
  return loss.part();
}

}  // namespace sluice
