#include "apps/report/start_table.h"

#include <fmt/format.h>

#include "apps/cli/progress.h"
#include "apps/cli/shell_quote.h"
#include "apps/output/program_folder.h"
#include "apps/report/shared_parts.h"
#include "kernels/cpu/parallel_for.h"
#include "models/decoder/config_json/config_file.h"

namespace sluice {
namespace {

const char* divided_by(std::int64_t zero) {
  return zero == 0   ? ""
         : zero == 1 ? ", each with a part of the optimizer state"
                     : ", each with a part of the optimizer state and of the gradients";
}

/// Returns "1.2M tokens", "900 pairs", or "120 sequences of pairs" if these are packed.
std::string amount_of(const TokenSource& tokens, bool packed) {
  if (const std::int64_t rows = tokens.in_rows() ? tokens.size() / tokens.row() : 0; rows > 0)
    return packed ? fmt::format("{} sequence{} of pairs", rows, rows == 1 ? "" : "s")
                  : fmt::format("{} pair{}", rows, rows == 1 ? "" : "s");
  return format_count(static_cast<double>(tokens.size())) + " tokens";
}

}  // namespace

void print_start_table(const TrainConfig& options, const RunSetup& setup, const StartFacts& facts) {
  const DecoderConfig& c = setup.config;
  const auto row = [](const char* name, const std::string& text) {
    say(fmt::format("{:<12} {}\n", name, text));
  };
  row("model",
      fmt::format("{}, {} layers, {} heads{}, width {}, vocabulary {}, context {}: {} "
                  "parameters{}",
                  names_of(c.family).title, c.n_layer, c.n_head,
                  c.kv_heads() == c.n_head ? "" : fmt::format(" ({} key/value)", c.kv_heads()),
                  c.n_embd, c.vocab_size, c.n_positions,
                  format_count(static_cast<double>(c.parameter_count())),
                  setup.model_folder.empty() ? "" : " from " + setup.model_folder.string()));
  for (const std::string& note : notes_on(c))
    row("", note);
  if (const DropoutConfig& dropout = setup.trainer.dropout;
      !options.model.dropout && dropout != DropoutConfig())
    row("dropout", fmt::format("{} of tokens, {} in attention, {} of branches, as config.json has "
                               "it (--dropout)",
                               dropout.embedding, dropout.attention, dropout.residual));
  if (c.lora.rank > 0) row("adapters", adapters_text(c));
  if (c.lora.int8_base) row("base", int8_base_text);
  row("data",
      fmt::format("{}: {}{}, {} for validation", setup.data_name,
                  amount_of(*setup.data.train, options.data.pack),
                  setup.tokenizer ? fmt::format(" ({})", setup.tokenizer->kind()) : std::string(),
                  setup.data.val ? amount_of(*setup.data.val, options.data.pack) : "none"));
  for (const std::string& note : setup.data.notes)
    row("", note);
  row("batch",
      fmt::format("{} sequences x {} tokens in micro-batches of {}, {} steps ({} tokens{})",
                  options.batch.size, setup.trainer.seq_len, facts.plan.choice.micro_batch,
                  options.batch.steps,
                  format_count(static_cast<double>(options.batch.size) *
                               static_cast<double>(setup.trainer.seq_len) *
                               static_cast<double>(options.batch.steps)),
                  setup.data.train->in_rows() ? ", with padding" : ""));
  if (options.batch.steps > 0 && options.optimizer.warmup_steps > options.batch.steps)
    row("rate", fmt::format("reaches {:.3g} of {:.3g}: its warm-up of {} steps (--warmup-steps) is "
                            "longer than the run",
                            setup.schedule.at(options.batch.steps - 1), setup.schedule.rate,
                            options.optimizer.warmup_steps));
  const Mesh& mesh = facts.mesh;
  if (mesh.size() > 1)
    row("ranks",
        fmt::format("{}: dp {} x pp {} x tp {}, {} sequences of each batch on each{}{}",
                    mesh.size(), mesh.dp, mesh.pp, mesh.tp, options.batch_share(),
                    mesh.dp < mesh.size() ? " replica" : "", divided_by(options.parallel.zero)));
  const std::string device =
      setup.device == DeviceKind::cpu
          ? fmt::format("cpu, {} threads", cpu::threads())
          : facts.device_name +
                (facts.device_code.empty() ? std::string() : ", code for " + facts.device_code);
  row("machine", fmt::format("{}, {}{}, {} {:.0f} GFLOP/s", device, name_of(setup.precision),
                             setup.precision.wgmma_attention ? ", attention by tma" : "",
                             options.log.peak_tflops ? "100 % MFU is" : "matrix products",
                             facts.matmul_flops / 1e9));
  const MemoryPlan& memory = facts.plan.memory;
  row("memory",
      fmt::format("{} planned{}{}", format_bytes(memory.peak), mesh.size() > 1 ? " for rank 0" : "",
                  memory.host > 0
                      ? fmt::format(" on the GPU, {} in host memory", format_bytes(memory.host))
                      : std::string()));
  row("", to_flags(facts.plan.choice));
  if (!options.memory.state_home.empty())
    row("state file",
        state_file_text(options.memory.state_home, facts.plan.files,
                        mesh.size() > 1 ? fmt::format(" of {} ranks", mesh.size()) : ""));
  row("output", facts.output.string());
  row("checkpoints",
      fmt::format("{} (--save-every), the newest {} are kept", facts.saves, facts.keep));
  if (options.log.verbose) {
    row("options", (facts.output / "config.toml").string());
    row("log", (facts.output / "log.jsonl").string());
  }
  if (!facts.note.empty()) row("note", facts.note);
  if (facts.step >= options.batch.steps && options.batch.steps > 0)
    say(fmt::format("nothing to do: {} of {} steps are done; raise --steps to go on\n", facts.step,
                    options.batch.steps));
  if (options.batch.steps == 0)
    say(fmt::format("nothing is trained with --steps 0{}\n",
                    setup.data.val ? "; the model is evaluated as it is" : ""));
}

void print_done(std::int64_t step, std::int64_t steps, std::optional<double> loss,
                std::optional<double> val_loss) {
  const auto text = [](const char* name, std::optional<double> value) {
    return value ? fmt::format(", {} {:.4f}", name, *value) : std::string();
  };
  say_always(fmt::format("\ndone         {}{} steps{}{}\n", step,
                         step > steps ? std::string() : fmt::format(" of {}", steps),
                         text("loss", loss), text("validation", val_loss)));
}

void print_what_next(const std::filesystem::path& output, bool stopped, bool saved) {
  if (stopped)
    say_always(
        fmt::format("go on with   the same command and --output {}\n", quoted(output.string())));
  if (!saved) return;
  say_always(fmt::format("model        {}\n", (output / "model").string()));
  say_always(fmt::format("next         {} --model {} --prompt \"...\"\n", command_of("generate"),
                         quoted((output / "model").string())));
  if (std::filesystem::exists("scripts/plot_run.py"))  // in the project's own folder
    say_always(fmt::format("             scripts/plot_run.py {}\n", quoted(output.string())));
}

}  // namespace sluice
