#include "apps/report/start_event.h"

#include <nlohmann/json.hpp>

#include "apps/cli/version.h"
#include "kernels/cpu/parallel_for.h"
#include "models/decoder/config_json/config_writer.h"
#include "models/lora/targets.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Json model_of(const RunSetup& setup) {
  const DecoderConfig& c = setup.config;
  const auto& folder = setup.model_folder;
  return {{"type", name_of(c.family)},
          {"n_layer", c.n_layer},
          {"n_head", c.n_head},
          {"n_kv_head", c.kv_heads()},
          {"n_embd", c.n_embd},
          {"n_inner", c.inner()},
          {"vocab_size", c.vocab_size},
          {"n_positions", c.n_positions},
          {"layer_norm_epsilon", c.layer_norm_epsilon},
          {"parameters", c.parameter_count()},
          {"adapter_parameters", adapter_parameters(c)},
          {"weights_from", folder.empty() ? Json(nullptr) : Json(folder.string())}};
}

Json values_of(TrainConfig options) {
  CommandLine line("train_gpt2", "");
  declare_config(line, options);
  return line.values();
}

/// Returns a checkpoint's description of its model: the sizes of a usual GPT-2, or the keys of a
/// config.json that decide what is computed.
nlohmann::json shape_of(DecoderConfig c) {
  // These do not decide what a forward pass computes.
  c.dropout = {};
  c.unused_keys.clear();
  c.n_positions = c.longest_sequence();
  c.window = 0;
  if (c.family != Family::gpt2 || !c.norm_bias || c.activation != MlpActivation::gelu) {
    nlohmann::json json = nlohmann::json::parse(config_json(c, "float32", -1));
    for (const char* const key :
         {"architectures", "torch_dtype", "attention_dropout", "bos_token_id", "pad_token_id",
          "eos_token_id", "rope_theta", "rope_scaling"})
      json.erase(key);
    return json;
  }
  return {c.n_layer,           c.n_head, c.n_embd, c.inner(), c.vocab_size, c.n_positions,
          c.layer_norm_epsilon};
}

}  // namespace

nlohmann::json run_identity(const TrainConfig& o, const RunSetup& setup) {
  // The layout of the state is no part of a run's identity.
  const OptimizerKind optimizer =
      o.optimizer.kind == OptimizerKind::adamw8bit ? OptimizerKind::adamw : o.optimizer.kind;
  Json identity{{"model", shape_of(setup.config)},
                {"optimizer", name_in(optimizers, optimizer)},
                {"precision", name_of(setup.precision)},
                {"data", fingerprint(*setup.data.train)},
                {"data_checksum", setup.data.train->checksum()},
                {"data_order", name_in(data_orders, o.data.order)},
                {"batch_size", o.batch.size},
                {"seq_len", setup.trainer.seq_len},
                {"seed", o.seed}};
  if (const LoraConfig& lora = setup.config.lora; lora.rank > 0)
    identity["lora"] = {{"rank", lora.rank},
                        {"alpha", lora.alpha},
                        {"targets", lora.targets},
                        {"base_checksum", setup.base_checksum}};
  if (setup.config.lora.int8_base) identity["lora"]["int8_base"] = true;
  return identity;
}

Json start_event(const TrainConfig& decided, const RunSetup& setup, const StartFacts& facts) {
  return {{"version", 1},
          {"program", std::string("Sluice ") + version()},
          {"step", facts.step},
          {"skipped_batches", facts.skipped_batches},
          {"steps", decided.batch.steps},
          {"model", model_of(setup)},
          {"parameters", setup.config.parameter_count()},
          {"options", values_of(decided)},
          {"planned_bytes", facts.plan.memory.peak},
          {"planned_host_bytes", facts.plan.memory.host},
          {"planned_file_bytes", facts.plan.files},
          {"memory", to_flags(facts.plan.choice)},
          {"matmul_flops", facts.matmul_flops},
          {"device", facts.device_name},
          {"device_code", facts.device_code},
          {"threads", cpu::threads()},
          {"ranks", facts.mesh.size()},
          {"mesh", {{"dp", facts.mesh.dp}, {"pp", facts.mesh.pp}, {"tp", facts.mesh.tp}}},
          {"zero", decided.parallel.zero},
          {"run", Json(run_identity(decided, setup))}};
}

}  // namespace sluice
