#include "tests/nccl/operation.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/half.h"

namespace sluice::nccl_standin {
namespace {

std::size_t width_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

const char* name_of(Kind kind) {
  constexpr const char* names[] = {"all_reduce",     "reduce", "broadcast", "all_gather",
                                   "reduce_scatter", "send",   "receive"};
  return names[static_cast<std::size_t>(kind)];
}

bool overlap(const char* a, std::size_t a_bytes, const char* b, std::size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

/// T: as stored; Wide: as summed.
template <class T, class Wide>
void reduce(const Operation& operation, const std::vector<const std::uint8_t*>& inputs) {
  for (std::size_t i = 0; i < operation.count; ++i) {
    Wide total{};
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      T element;
      std::memcpy(&element, inputs[rank] + i * sizeof(T), sizeof(T));
      const auto value = static_cast<Wide>(element);
      if (rank == 0)
        total = value;
      else
        total = operation.op == ncclMax ? std::max(total, value) : static_cast<Wide>(total + value);
    }
    const auto rounded = static_cast<T>(total);
    std::memcpy(static_cast<std::uint8_t*>(operation.out) + i * sizeof(T), &rounded, sizeof(T));
  }
}

void reduce(const Operation& operation, const std::vector<const std::uint8_t*>& inputs) {
  switch (operation.type) {
    case ncclFloat32:
      return reduce<float, float>(operation, inputs);
    case ncclFloat64:
      return reduce<double, double>(operation, inputs);
    case ncclInt32:
      return reduce<std::int32_t, std::int32_t>(operation, inputs);
    case ncclBfloat16:
      return reduce<BFloat16, float>(operation, inputs);
    case ncclFloat16:
      return reduce<Half, float>(operation, inputs);
    default:
      return reduce<std::uint8_t, std::uint8_t>(operation, inputs);
  }
}

}  // namespace

std::size_t Operation::bytes() const {
  return count * width_of(type);
}

Bytes Operation::input(int ranks) const {
  const auto* start = static_cast<const std::uint8_t*>(in);
  const std::size_t parts = kind == Kind::reduce_scatter ? static_cast<std::size_t>(ranks) : 1;
  return start == nullptr ? Bytes() : Bytes(start, start + parts * bytes());
}

std::string Operation::text() const {
  const bool reduces =
      kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
  return std::string(name_of(kind)) + " of " + std::to_string(count) + " of type " +
         std::to_string(type) + (reduces ? " with operator " + std::to_string(op) : "") +
         (root >= 0 ? ", root " + std::to_string(root) : "");
}

std::string fault_of(const Operation& operation, int rank, int ranks) {
  if (operation.count == 0) return {};
  const auto* in = static_cast<const char*>(operation.in);
  const auto* out = static_cast<const char*>(operation.out);
  const std::size_t bytes = operation.bytes(), all = static_cast<std::size_t>(ranks) * bytes;
  const std::size_t mine = static_cast<std::size_t>(rank) * bytes;
  switch (operation.kind) {
    case Kind::all_gather:
      if (overlap(in, bytes, out, all) && in != out + mine)
        return "all_gather in place has its input at another place than its rank's";
      return {};
    case Kind::reduce_scatter:
      if (overlap(in, all, out, bytes) && out != in + mine)
        return "reduce_scatter in place has its output at another place than its rank's";
      return {};
    case Kind::send:
    case Kind::receive:
      if (operation.root < 0 || operation.root >= ranks) return "a message has no such peer";
      return {};
    default:
      if (in != out && overlap(in, bytes, out, bytes)) return "input and output overlap";
      return {};
  }
}

void finish(const Operation& operation, int rank, const std::vector<Bytes>& inputs) {
  const std::size_t bytes = operation.bytes();
  auto* const out = static_cast<std::uint8_t*>(operation.out);
  switch (operation.kind) {
    case Kind::broadcast:
      std::memcpy(out, inputs[static_cast<std::size_t>(operation.root)].data(), bytes);
      return;
    case Kind::all_gather:
      for (std::size_t peer = 0; peer < inputs.size(); ++peer)
        std::memcpy(out + peer * bytes, inputs[peer].data(), bytes);
      return;
    default:
      if (operation.kind == Kind::reduce && rank != operation.root) return;
      std::vector<const std::uint8_t*> starts;
      for (const Bytes& input : inputs)
        starts.push_back(input.data() + (operation.kind == Kind::reduce_scatter
                                             ? static_cast<std::size_t>(rank) * bytes
                                             : 0));
      reduce(operation, starts);
  }
}

}  // namespace sluice::nccl_standin
