#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "apps/checkpoint/model_folder.h"
#include "apps/cli/command_line.h"
#include "apps/cli/run_program.h"
#include "apps/output/output_file.h"
#include "engine/io/gguf.h"
#include "engine/io/stored_tensor.h"
#include "engine/io/utf8.h"
#include "models/decoder/gguf_model.h"
#include "models/decoder/weights.h"
#include "models/lora/adapter_file.h"
#include "models/lora/merge_adapter.h"
#include "models/text/bpe/gguf_tokenizer.h"

namespace sluice {
namespace {

struct Options {
  std::string input, output, merge, dtype = "f32";
  std::optional<std::int64_t> context;
};

void declare(CommandLine& line, Options& o) {
  line.add("--input", o.input,
           "Hugging Face folder: single file or shards, any float type; or a .gguf file");
  line.require("--input");
  line.add_output("--output", o.output,
                  "Folder to write: config.json, model.safetensors, tokenizer",
                  [](const std::string& folder) { require_own_model("convert", folder); });
  line.require("--output");
  line.add("--merge", o.merge, "Folder of LoRA adapters, in PEFT's form, to add to the weights");
  line.add_choice("--dtype", o.dtype, "Type of the stored weights", {"f32", "bf16", "f16"});
  line.add("--context", o.context, "Keep only this many positions", 1);
}

struct Input {
  LoadedModel model;
  std::unique_ptr<Tokenizer> tokenizer;
};

DType dtype_of(const Options& o) {
  return o.dtype == "bf16" ? DType::bf16 : o.dtype == "f16" ? DType::f16 : DType::f32;
}

Input read_folder(const Options& o) {
  require_apart(o.output, o.input);
  const auto device = make_cpu_device();
  constexpr auto use = ParameterSpace::Use::inference;
  if (o.merge.empty() && !is_adapter_folder(o.input))
    return {load_model(o.input, device, DType::f32, use, o.context), find_tokenizer(o.input)};
  ModelSource source = find_model(o.input, o.merge);
  require_apart(o.output, source.weights.string());
  const std::filesystem::path adapter = std::exchange(source.adapter, {});
  Input input{load_model(source, device, DType::f32, use, o.context),
              find_tokenizer(source.folder)};
  const double lost =
      merge_adapter(adapter, input.model.model->config(), *input.model.space, dtype_of(o));
  if (o.dtype != "f32")
    fmt::print("rounding to {} loses {:.2g} % of what the adapters change\n", o.dtype, 100 * lost);
  return input;
}

Input read_gguf(const Options& o) {
  const GgufReader reader(o.input);
  DecoderConfig config = gguf_config(reader);
  shorten_context(config, o.context);
  Input input{{std::make_unique<Decoder>(config), nullptr}, nullptr};
  input.model.space =
      std::make_unique<ParameterSpace>(input.model.model->parameters(), make_cpu_device(),
                                       DType::f32, ParameterSpace::Use::inference);
  load_gguf_weights(reader, config, *input.model.space);
  input.tokenizer = without_fault([&] { return gguf_tokenizer(reader); });
  return input;
}

int run(const Options& o) {
  if (is_gguf_name(o.output))
    fail(fmt::format("--output {}: GGUF files are read and not written yet; give a folder, which "
                     "llama.cpp's convert_hf_to_gguf.py makes a GGUF file of",
                     o.output),
         ErrorKind::usage);
  if (!o.merge.empty()) {
    require_apart(o.output, o.merge, "--merge");
    if (is_gguf_name(o.input))
      fail("--merge: adapters are added to a model folder; convert the .gguf file to one first",
           ErrorKind::usage);
  }
  const auto [loaded, tokenizer] = is_gguf_name(o.input) ? read_gguf(o) : read_folder(o);
  const StoredType type = stored_type(dtype_of(o));
  ModelExport files(o.output, loaded.model->config());
  try {
    save_weights(files.weights(), *loaded.space, type, "convert");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::numerical) throw;
    fail(fmt::format("--dtype {}: {}", o.dtype, error.what()), ErrorKind::numerical);
  }
  files.publish(tokenizer.get(), type, is_gguf_name(o.input) ? "" : o.input);
  fmt::print("{} parameters written to {} as {}\n", loaded.space->parameters(), printable(o.output),
             o.dtype);
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::run_program("convert", [&] {
    sluice::Options options;
    sluice::CommandLine line("convert",
                             "Rewrites a model folder: another type, one file for shards, a "
                             "shorter context. Makes one of a GGUF file.");
    sluice::declare(line, options);
    return line.parse(argc, argv) ? sluice::run(options) : 0;
  });
}
