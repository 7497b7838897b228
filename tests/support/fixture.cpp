#include "tests/support/fixture.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/io/stored_tensor.h"
#include "models/decoder/config_json/config_file.h"
#include "models/decoder/config_json/config_writer.h"
#include "models/decoder/weights.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"
#include "tests/support/temp_dir.h"

namespace sluice::test {
namespace {

template <class T>
std::vector<T> read_as(const SafetensorsReader& reader, const std::string& name) {
  const StoredTensor* tensor = reader.find(name);
  if (tensor == nullptr) throw std::runtime_error("the reference has no tensor " + name);
  std::vector<T> values(tensor->byte_size() / sizeof(T));
  reader.read(*tensor, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace

Fixture::Fixture(const std::filesystem::path& folder, const std::string& name) {
  // Two of the models share files with `tiny`.
  const std::string reference = name == "tiny-prefixed" ? "tiny" : name;
  const std::string tokens = name.starts_with("tiny") ? "tiny" : name;
  model_ = folder / name;
  token_file_ = folder / tokens / "tokens.bin";
  json_ = std::make_shared<nlohmann::json>(
      nlohmann::json::parse(read_file(folder / reference / "ref" / "ref.json")));
  tensors_ = std::make_shared<SafetensorsReader>(folder / reference / "ref" / "ref.safetensors");
}

std::int64_t Fixture::hyper(const char* name) const {
  return json_->at("hyper").at(name).get<std::int64_t>();
}

std::vector<double> Fixture::values(const std::string& name) const {
  const auto narrow = read_as<float>(*tensors_, name);
  return {narrow.begin(), narrow.end()};
}

std::vector<std::int32_t> Fixture::ids(const std::string& name) const {
  return read_as<std::int32_t>(*tensors_, name);
}

double worst_difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  if (actual.size() != expected.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(actual[i] - expected[i]);
    // Written so that a NaN counts as the worst.
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}

TestModel open_model(const std::filesystem::path& folder, const DevicePtr& device, DType dtype,
                     ParameterSpace::Use use, const TensorShare& share,
                     const SpaceOptions& options) {
  const DecoderConfig config = read_config(folder / "config.json");
  TestModel result{std::make_unique<Decoder>(config, share), nullptr};
  result.space =
      std::make_unique<ParameterSpace>(result.model->parameters(), device, dtype, use, options);
  load_weights(folder, config, *result.space);
  return result;
}

TestModel random_model(const DecoderConfig& config, const DevicePtr& device, DType dtype,
                       std::uint64_t seed, ParameterSpace::Use use, const TensorShare& share) {
  TestModel result{std::make_unique<Decoder>(config, share), nullptr};
  result.space = std::make_unique<ParameterSpace>(result.model->parameters(), device, dtype, use);
  for (const auto& slot : result.space->slots()) {
    const Shape& whole = slot.whole();
    Values values = random_values(element_count(whole), ++seed, whole.size() > 1 ? 0.5 : 0.3);
    for (auto& value : values)
      value += slot.initial.value;
    const Tensor made =
        Tensor::from_host(make_cpu_device(), whole, result.space->weight_dtype(), values);
    std::vector<std::byte> bytes(made.bytes());
    made.copy_bytes_to(bytes);
    result.space->write_shard(slot, 0, bytes);
  }
  return result;
}

DecoderConfig small_config() {
  return {.n_layer = 2, .n_head = 2, .n_embd = 16, .vocab_size = 64, .n_positions = 16};
}

void write_model(const std::filesystem::path& folder, const DecoderConfig& config,
                 std::uint64_t seed) {
  std::filesystem::create_directories(folder);
  const auto made =
      random_model(config, make_cpu_device(), DType::f32, seed, ParameterSpace::Use::inference);
  save_weights(folder / "model.safetensors", *made.space, StoredType::F32);
  write_file(folder / "config.json", config_json(config, "float32", -1));
}

Weights weights_of(const ParameterSpace& space) {
  Weights weights;
  const Tensor all = flat_weights(space);
  for (const auto& slot : space.slots())
    weights[slot.name] = {slot.shape, all.slice(slot.offset, slot.shape).to_host()};
  return weights;
}

void write_weights(const std::filesystem::path& file, const Weights& weights, StoredType type) {
  const auto device = make_cpu_device();
  std::vector<StoredTensor> list;
  for (const auto& [name, entry] : weights)
    list.push_back({.name = name, .type = type, .shape = entry.first});
  SafetensorsWriter writer(file, list, {});
  for (const auto& [name, entry] : weights)
    write_floats(writer, Tensor::from_host(device, entry.first, DType::f32, entry.second), type);
  writer.finish();
}

std::vector<std::int32_t> random_ids(std::size_t count, std::int32_t vocab_size,
                                     std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::int32_t> ids(count);
  for (auto& id : ids)
    id = static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(vocab_size));
  return ids;
}

void write_tokens(const std::filesystem::path& file, std::size_t count, std::int32_t vocab_size,
                  std::uint64_t seed) {
  std::string bytes;
  for (const std::int32_t id : random_ids(count, vocab_size, seed)) {
    bytes += static_cast<char>(id & 0xFF);
    bytes += static_cast<char>(id >> 8);
  }
  write_file(file, bytes);
}

}  // namespace sluice::test
