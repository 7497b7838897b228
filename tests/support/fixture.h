#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "models/decoder/decoder.h"
#include "optim/space/parameter_space.h"
#include "tests/support/data_folders.h"

// Models with expected values from another program, and small models made here.

namespace sluice::test {

using Json = nlohmann::json;

/// A model with what is expected of it; tests/reference/models.py describes the files.
class Fixture {
 public:
  /// `folder` is one of fixture_folders(), and `name` that of a model there.
  Fixture(const std::filesystem::path& folder, const std::string& name);

  const std::filesystem::path& model() const { return model_; }
  const std::filesystem::path& token_file() const { return token_file_; }
  const Json& json() const { return *json_; }
  std::int64_t hyper(const char* name) const;

  /// Returns a tensor of ref.safetensors, widened to double.
  std::vector<double> values(const std::string& name) const;
  std::vector<std::int32_t> ids(const std::string& name) const;

 private:
  std::filesystem::path model_, token_file_;
  std::shared_ptr<const Json> json_;
  std::shared_ptr<SafetensorsReader> tensors_;
};

/// Returns the largest absolute difference of two lists of numbers, and infinity if one is longer.
double worst_difference(const std::vector<double>& actual, const std::vector<double>& expected);

struct TestModel {
  std::unique_ptr<Decoder> model;
  std::unique_ptr<ParameterSpace> space;
};

/// Opens the model of a folder, or a rank's shard of it, with the code under test.
TestModel open_model(const std::filesystem::path& folder, const DevicePtr& device,
                     DType dtype = DType::f32,
                     ParameterSpace::Use use = ParameterSpace::Use::training,
                     const TensorShare& share = {}, const SpaceOptions& options = {});

/// Makes a model with nontrivial biases and gains, so that every parameter matters.
TestModel random_model(const DecoderConfig& config, const DevicePtr& device, DType dtype,
                       std::uint64_t seed = 1,
                       ParameterSpace::Use use = ParameterSpace::Use::training,
                       const TensorShare& share = {});

/// Returns a config with 2 layers, 2 heads, width 16, 64 tokens, context 16.
DecoderConfig small_config();

/// Writes config.json and model.safetensors of such a model.
void write_model(const std::filesystem::path& folder, const DecoderConfig& config = small_config(),
                 std::uint64_t seed = 1);

/// The parameters of a model by name, to be changed and then written.
using Weights = std::map<std::string, std::pair<Shape, std::vector<double>>>;
Weights weights_of(const ParameterSpace& space);
void write_weights(const std::filesystem::path& file, const Weights& weights,
                   StoredType type = StoredType::F32);

/// Writes a headerless token file of `count` ids below `vocab_size`.
void write_tokens(const std::filesystem::path& file, std::size_t count, std::int32_t vocab_size,
                  std::uint64_t seed = 1);
std::vector<std::int32_t> random_ids(std::size_t count, std::int32_t vocab_size,
                                     std::uint64_t seed = 1);

}  // namespace sluice::test
