#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "engine/io/safetensors.h"
#include "models/decoder/config.h"
#include "optim/space/parameter_space.h"
#include "optim/space/quantized_space.h"

namespace sluice {

/// Fills the weights of `space` (all or some blocks of a decoder of shape `config`) from a Hugging
/// Face folder: model.safetensors, or the shards that model.safetensors.index.json lists. Tensors
/// may be F32, BF16, F16 or F64. `folder` may also be one safetensors file.
///
/// Accepts names with or without the family's prefix ("transformer." or "model."), buffers of
/// constants, lm_head.weight if it equals a tied table, and more rows in wpe.weight than `config`
/// has positions (the context is cropped). Throws Error (usage),
/// naming the file and the tensor, for a tensor that is missing, unknown, found twice, of another
/// shape or dtype, or not finite.
void load_weights(const std::filesystem::path& folder, const DecoderConfig& config,
                  ParameterSpace& space);
/// The same for matrices that are kept as 8-bit integers.
void load_weights(const std::filesystem::path& folder, const DecoderConfig& config,
                  QuantizedSpace& space);

/// Fills a slice of a slot of `space` from a tensor of its shape. Throws Error naming file and
/// tensor: see read_floats(). A value that would be infinite in the dtype in which the model
/// computes is refused too.
void read_slice(const SafetensorsReader& reader, const StoredTensor& tensor, ParameterSpace& space,
                const ParameterSpace::Slot& slot, const StoredSlice& slice);

/// Throws the errors that load_weights() would throw because of tensor names and shapes. Reads only
/// the files' headers, so it can run before memory is allocated.
void check_weights(const std::filesystem::path& folder, const DecoderConfig& config);

/// Returns a CRC-32 of the files of weights. Reads all of them.
std::uint32_t weights_checksum(const std::filesystem::path& folder);

/// Returns true if a file of this name in a model folder holds or lists weights, for example
/// model.safetensors, model.safetensors.index.json or model-00001-of-00003.safetensors.
bool is_weights_file(std::string_view name);

/// The tensors and the metadata of a file of weights under Hugging Face's names: those of each slot
/// of `layout`, in order.
SafetensorsHeader weights_header(const SpaceLayout& layout, StoredType type);

/// Key of the metadata under which a program leaves its name, to know the file as its own.
inline constexpr const char* weights_writer = "written_by";

/// Writes the weights to such a file, converted from the master weights to `type` (F32, BF16 or
/// F16), with the name of the program, if given. The file is synced.
void save_weights(const std::filesystem::path& file, const ParameterSpace& space, StoredType type,
                  const std::string& writer_name = {});

}  // namespace sluice
