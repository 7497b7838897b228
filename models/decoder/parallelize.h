#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/decoder/decoder.h"
#include "parallel/pipeline/stage.h"

namespace sluice {

/// Costs in any unit: of one block, and of what the first and the last stage compute besides
/// blocks.
struct BlockCosts {
  double block = 1, first = 0, last = 0;
};
/// Returns the blocks per stage (at least one) that make the most expensive stage as cheap as
/// possible.
std::vector<std::int64_t> balanced_blocks(std::int64_t blocks, int stages, const BlockCosts& costs);

/// How a pipeline divides a model's blocks between its stages.
struct BlockSplit {
  enum class By : std::uint8_t {
    blocks,      ///< equally many each, the first stages one more if need be
    parameters,  ///< the largest stage is as small as possible; both ends count the embedding
    time,        ///< measured when a run starts
    list         ///< given numbers of blocks
  };
  By by = By::blocks;
  std::string list{};  ///< numbers of blocks, such as "3,4,4,1"

  friend bool operator==(const BlockSplit&, const BlockSplit&) = default;
};

/// Parses "blocks", "parameters", "time", or anything else as a list, which split_blocks checks.
BlockSplit parse_block_split(const std::string& text);
std::string to_string(const BlockSplit& split);

/// Divides a model's blocks into `stages` stages. Throws Error (usage) with the arithmetic if it
/// cannot, and for By::time, which must be measured first.
std::vector<DecoderPart> split_blocks(const DecoderConfig& config, int stages,
                                      const BlockSplit& how);

/// The micro-batches of a step.
struct MicroBatches {
  std::span<const std::int32_t> tokens{}, targets{};  ///< [micro-batches, rows, seq_len]
  std::int64_t rows = 1, seq_len = 1;
  LinearCrossEntropyOptions loss{};
  DropoutSource dropout{};  ///< of the first micro-batch
  Documents documents{};

  Documents documents_of(int micro_batch) const {
    return documents.part(micro_batch * rows * seq_len, rows * seq_len);
  }
};

/// Some blocks of a decoder as a pipeline stage, with the embedding or the head at the ends.
class DecoderStage final : public Stage {
 public:
  /// `data` may change between steps. All arguments must outlive the stage.
  DecoderStage(const Decoder& model, const DecoderPart& part, const MicroBatches& data,
               const DevicePtr& device, DType dtype)
      : model_(model), part_(part), data_(data), device_(device), dtype_(dtype) {}

  Boundary input(int micro_batch) const override;
  Boundary output(int micro_batch) const override { return input(micro_batch); }
  Tensor forward(int micro_batch, const Tensor& input) override;

 private:
  Tensor ids(std::span<const std::int32_t> all, int micro_batch) const;
  Shape divided() const { return model_.divided({data_.rows, data_.seq_len}); }

  const Decoder& model_;
  DecoderPart part_;
  const MicroBatches& data_;
  DevicePtr device_;
  DType dtype_;
};

}  // namespace sluice
