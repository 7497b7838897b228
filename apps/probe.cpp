#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "apps/checkpoint/model_folder.h"
#include "apps/cli/command_line.h"
#include "apps/cli/machine.h"
#include "apps/cli/run_program.h"
#include "apps/data/tokens/prepared_folder.h"
#include "apps/output/output_file.h"
#include "apps/train/diagnosis.h"
#include "engine/autograd.h"
#include "engine/io/output.h"
#include "engine/io/safetensors.h"
#include "engine/io/stored_tensor.h"
#include "engine/io/token_file.h"
#include "kernels/cpu/parallel_for.h"
#include "models/decoder/weights.h"
#include "models/lora/adapter_file.h"
#include "models/lora/frozen_weights.h"
#include "models/lora/targets.h"
#include "parallel/comm/communicator.h"

namespace sluice {
namespace {

struct Options {
  std::string model, adapter, tokens, dump;
  bool int8_base = false;
  PrecisionName precision = PrecisionName::fp32;
  std::optional<DeviceKind> device;
  std::int64_t batch = 1, seq = 16, threads = 0;
};

/// Recognises this program's own dumps: they have logits, and their gradients have other names.
bool is_dump(const File& file) {
  try {
    return SafetensorsReader(file.path()).find("logits") != nullptr;
  } catch (const Error&) {
    return false;
  }
}

void declare(CommandLine& line, Options& o) {
  line.add("--model", o.model, "Hugging Face folder");
  line.require("--model");
  line.add("--adapter", o.adapter,
           "Folder of LoRA adapters, in PEFT's form, whose gradients are computed instead");
  line.add("--int8-base", o.int8_base, "Keep the matrices beside the adapters in 8 bits");
  line.add("--tokens", o.tokens, "File of token ids; the first batch * seq + 1 are used");
  line.require("--tokens");
  line.add("--batch", o.batch, "Sequences", 1, 1 << 20);
  line.add("--seq", o.seq, "Tokens per sequence", 1, 1 << 20);
  add_output_file(line, "--dump", o.dump, "a dump of probe", is_dump,
                  "Write logits, loss and every gradient to this safetensors file");
  line.add_choice("--precision", o.precision, "Arithmetic", all_precisions);
  line.add_choice("--device", o.device, "Where to compute", devices);
  line.add("--threads", o.threads, "CPU threads; 0: all cores", 0, 4096);
}

void dump(const std::string& path, const Tensor& logits, const Tensor& loss,
          const ParameterSpace& space) {
  const StoredType type = stored_type(accumulator_of(space.working().dtype()));
  std::vector<StoredTensor> list{{.name = "logits", .type = type, .shape = logits.shape()},
                                 {.name = "loss", .type = type, .shape = {}}};
  for (const auto& slot : space.slots())
    for (const StoredSlice& slice : slot.stored())
      list.push_back({.name = "grad." + slice.name, .type = type, .shape = slice.shape});
  DurableOutput file(path);
  SafetensorsWriter writer(file, list, {});
  write_floats(writer, logits, type);
  write_floats(writer, loss, type);
  for (const auto& slot : space.slots())
    write_floats(writer, slot.tensor->grad(), type);
  writer.finish();
}

/// The model, whose trained parameters are those of the adapters if there are some; the others are
/// then apart.
std::pair<std::unique_ptr<FrozenWeights>, LoadedModel> load(const Options& o,
                                                            const DevicePtr& device, DType dtype) {
  constexpr auto use = ParameterSpace::Use::training;
  if (o.adapter.empty()) return {nullptr, load_model(o.model, device, dtype, use)};
  const ModelSource source = find_model(o.model);
  DecoderConfig config = source.config;
  config.lora = read_adapter(o.adapter, config).lora;
  config.lora.int8_base = o.int8_base;
  require_lora_fits(config, "--adapter " + o.adapter);
  LoadedModel loaded = make_model(config, device, dtype, use);
  auto frozen = std::make_unique<FrozenWeights>(
      *loaded.model, std::vector<DecoderPart>{{0, config.n_layer}}, device, dtype);
  frozen->load(source.weights, config);
  load_adapter(o.adapter, *loaded.space);
  return {std::move(frozen), std::move(loaded)};
}

/// Says where the first number that is not finite comes from. `pass` computes loss and gradients
/// again.
[[noreturn]] void refuse_numbers(const LoadedModel& loaded, const std::function<void()>& pass,
                                 bool dumped) {
  Diagnosis diagnosis(*loaded.space, loaded.model->names());
  diagnosis.look_at_weights();
  {
    const Observed observed(diagnosis);
    pass();
  }
  Communicator alone(make_self_transport(), nullptr, {});
  const Sighting first = diagnosis.first(alone);
  fail(fmt::format("numbers are not finite, first seen in {}; compute in a wider --precision{}",
                   first.phase == Sighting::Phase::nowhere ? "sums of gradients" : first.text,
                   dumped ? "; the dump has them all" : ", and see them all with --dump"),
       ErrorKind::numerical);
}

int run(const Options& o) {
  cpu::set_threads(static_cast<int>(o.threads));
  if (o.int8_base && o.adapter.empty())
    fail("--int8-base is for a model with adapters: give --adapter too", ErrorKind::usage);
  if (!o.dump.empty()) require_not_input("--dump", o.dump, {o.tokens});
  const DeviceKind kind = choose_device(o.device);
  const Precision precision = resolve_precision(o.precision, kind);
  const auto device = make_device(kind, precision);
  const auto [frozen, loaded] = load(o, device, precision.dtype);
  if (const auto tokenizer = find_tokenizer(o.model))
    require_made_with("--tokens", std::vector<std::filesystem::path>{o.tokens}, *tokenizer,
                      "--model " + o.model);
  TokenFile file(o.tokens);
  file.read_all(loaded.model->config().vocab_size);
  require_length(loaded.model->config(), o.seq, fmt::format("--seq {}", o.seq));
  const auto count = static_cast<std::size_t>(o.batch * o.seq);
  if (file.size() < count + 1)
    fail(fmt::format("{} has {} tokens; --batch {} x --seq {} needs {}", o.tokens, file.size(),
                     o.batch, o.seq, count + 1),
         ErrorKind::usage);
  std::vector<std::int32_t> ids(count + 1);
  file.read(0, ids);
  const Shape shape{o.batch, o.seq};
  const auto inputs = Tensor::from_tokens(device, shape, std::span(ids).first(count));
  const auto targets = Tensor::from_tokens(device, shape, std::span(ids).subspan(1));
  const Tensor logits = [&] {
    const NoGrad no_grad;
    return loaded.model->logits(loaded.model->hidden(inputs));
  }();
  Tensor loss;
  const auto pass = [&, &model = *loaded.model, &space = *loaded.space] {
    space.forget_gradients();
    loss = model.loss(inputs, targets, {.scale = 1.0 / static_cast<double>(count)}).loss;
    backward(loss);
    space.zero_unused_gradients();
  };
  pass();
  loaded.space->clip_gradients(0);
  const double value = loss.item(), norm = loaded.space->gradient_norm();
  // NaN is printed without a sign.
  fmt::print("loss {:.9g} grad_norm {:.9g}\n", std::isnan(value) ? std::abs(value) : value,
             std::abs(norm));
  // The dump is written first: it helps to find the NaN.
  if (!o.dump.empty()) dump(o.dump, logits, loss, *loaded.space);
  if (!std::isfinite(value) || !std::isfinite(norm) || !all_finite(logits))
    refuse_numbers(loaded, pass, !o.dump.empty());
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::run_program("probe", [&] {
    sluice::Options options;
    sluice::CommandLine line("probe",
                             "One forward and backward pass over the first tokens of a file, for "
                             "comparison with another framework.");
    sluice::declare(line, options);
    return line.parse(argc, argv) ? sluice::run(options) : 0;
  });
}
