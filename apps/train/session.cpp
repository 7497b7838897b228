#include "apps/train/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/train/bad_steps.h"
#include "apps/train/calibrate.h"
#include "apps/train/checkpoint_folder.h"
#include "apps/train/checkpoint_saver.h"
#include "apps/train/diagnosis.h"
#include "apps/train/loader.h"
#include "apps/train/model_folder.h"
#include "apps/train/open_host.h"
#include "apps/train/output_folder.h"
#include "apps/train/plan_report.h"
#include "apps/train/progress.h"
#include "apps/train/resume.h"
#include "apps/train/run_log.h"
#include "apps/train/run_memory.h"
#include "apps/train/run_times.h"
#include "apps/train/setup.h"
#include "apps/train/split_times.h"
#include "apps/train/start_table.h"
#include "apps/train/stop_signal.h"
#include "apps/train/version.h"
#include "engine/io/durable.h"
#include "kernels/cpu/parallel_for.h"
#include "models/gpt2/weights.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class Session {
 public:
  Session(const TrainOptions& options, RunSetup setup, const std::string& resolved, Job& job);
  void run();

 private:
  void require_agreement();
  void prepare_output(const std::string& resolved);
  void load_or_initialize();
  nlohmann::json run_identity() const;
  void resume();
  void train_until(std::int64_t last, const StopSignal& signal);
  const char* stop_asked(const StopSignal& signal);
  void log(std::string_view event, const Json& fields) {
    if (log_) log_->write(event, fields);
  }
  void record_step(std::int64_t step, const TrainStep& result, double milliseconds);
  void guard_numbers(std::int64_t step, const TrainStep& result);
  void check_replicas();
  void validate_now(std::int64_t step);
  void sample_now(std::int64_t step);
  void save_now(std::int64_t step);
  void report_saves();
  void export_now();
  void finish(const char* stopped_by);
  bool due(std::int64_t step, std::int64_t every) const { return every > 0 && step % every == 0; }

  const TrainOptions& options_;
  Job& job_;
  RunSetup setup_;
  fs::path output_;
  double peak_rate_ = 0;  ///< of matrix products, measured before the memory is taken
  Resumption found_;      ///< what it goes on from
  Plan plan_;
  DevicePtr device_;
  HostMemory host_;  ///< none where all state stays on the device
  Training training_;
  CheckpointSaver saver_;
  BatchLoader loader_;
  std::optional<RunLog> log_;  ///< of the first rank
  std::optional<RunTimes> times_;
  std::optional<StepPrinter> printer_;
  std::string data_fingerprint_;
  std::int64_t step_ = 0;  ///< updates done
  std::int64_t saved_step_ = -1;
  BadSteps bad_steps_;
  double last_loss_ = NAN, last_val_ = NAN;
};

SequenceSampler make_sampler(const TrainOptions& o, const RunSetup& setup) {
  using Order = SequenceSampler::Order;
  return {o.data_order == "sequential" ? Order::sequential : Order::shuffled, o.seed,
          setup.data.train->size(), o.batch_size, setup.trainer.seq_len};
}

std::string shared_output(const TrainOptions& options, Job& job) {
  return job.control().share_text(output_of(options).string(), 0, "output");
}

Session::Session(const TrainOptions& options, RunSetup setup, const std::string& resolved, Job& job)
    : options_(options),
      job_(job),
      setup_(std::move(setup)),
      output_(shared_output(options, job)),
      peak_rate_(measure_matmul_rate(setup_.device, setup_.precision)),
      found_(find_checkpoint(options, output_, job)),
      plan_(plan_here(options, setup_, found_, job)),
      // Exactly what was counted: there is no more to be had, and nothing is asked for later.
      device_(make_device(setup_.device, setup_.precision, plan_.memory.high_water)),
      host_(open_host(options, setup_, job.control(), device_, plan_)),
      training_(
          options, setup_, plan_.choice, device_, host_,
          job.ranks_on(device_, largest_exchanges(options, setup_, plan_.choice, job.mesh()))),
      saver_(output_ / "checkpoints", options.keep, training_.copy),
      loader_(*setup_.data.train, make_sampler(options, setup_), options.batch_size,
              setup_.trainer.seq_len, share_of(options) * job.replica(), share_of(options)),
      data_fingerprint_(fingerprint(*setup_.data.train)),
      bad_steps_(options.max_bad_steps) {
  require_agreement();
  // Nothing is written before everything that is given has been read and found good.
  load_or_initialize();
  resume();
  if (options.skip_batches > 0 && saved_step_ < 0)
    fail("--skip-batches is for a run that is resumed, and there is no checkpoint to resume from",
         ErrorKind::usage);
  training_.trainer.spikes().skip_batches(options.skip_batches);
  job.require_equal("step to start at", std::to_string(step_));
  training_.require_equal_copies("at the start");
  prepare_output(resolved);
}

void Session::require_agreement() {
  job_.require_equal("program", version());
  job_.require_equal("validation data", setup_.data.val ? fingerprint(*setup_.data.val) : "none");
  const nlohmann::json identity = run_identity();
  for (const auto& [key, value] : identity.items())
    job_.require_equal(key, value.dump());
}

void Session::prepare_output(const std::string& resolved) {
  times_.emplace(options_, job_, setup_.pipeline, training_.trainer.started());
  if (job_.rank() > 0) return;
  create_directories_durably(output_);
  log_.emplace(output_ / "log.jsonl");
  for (const auto& warning : found_.warnings)
    log("warning", {{"message", warning}});
  write_file_durably(output_ / "config.toml", std::as_bytes(std::span(resolved)));
}

void Session::load_or_initialize() {
  if (job_.rank() == 0) require_writable(output_);
  if (options_.resume == "never" && !list_checkpoints(output_ / "checkpoints").empty())
    fail(fmt::format("--output {} holds checkpoints of an earlier run and --resume is never; give "
                     "another --output",
                     output_.string()),
         ErrorKind::usage);
  if (setup_.model_folder.empty())
    training_.space.initialize(options_.seed);
  else
    load_weights(setup_.model_folder, setup_.config, training_.space);
}

/// What must be the same for a checkpoint to be continued.
nlohmann::json Session::run_identity() const {
  const GPT2Config& c = setup_.config;
  return {{"model",
           {c.n_layer, c.n_head, c.n_embd, c.inner(), c.vocab_size, c.n_positions,
            c.layer_norm_epsilon}},
          {"optimizer", options_.optimizer == "adamw8bit" ? "adamw" : options_.optimizer},
          {"precision", name_of(setup_.precision)},
          {"data", data_fingerprint_},
          {"data_order", options_.data_order},
          {"batch_size", options_.batch_size},
          {"seq_len", setup_.trainer.seq_len},
          {"seed", options_.seed}};
}

void Session::resume() {
  if (found_.checkpoint.empty()) return;
  step_ =
      load_checkpoint(found_.checkpoint, found_.manifest, run_identity(), training_.checkpoint());
  saved_step_ = step_;
  say(fmt::format("resumed      {} (step {})\n", found_.checkpoint.string(), step_));
}

void Session::run() {
  print_start_table(options_, setup_,
                    {.parameters = training_.space.parameters(),
                     .plan = plan_,
                     .matmul_flops = peak_rate_,
                     .device_name = device_->runtime().info().name,
                     .output = output_});
  log("start", {{"version", 1},
                {"program", std::string("Sluice ") + version()},
                {"step", step_},
                {"skipped_batches", training_.trainer.spikes().skipped_batches()},
                {"steps", options_.steps},
                {"parameters", training_.space.parameters()},
                {"planned_bytes", plan_.memory.peak},
                {"planned_host_bytes", plan_.memory.host},
                {"memory", to_flags(plan_.choice)},
                {"matmul_flops", peak_rate_},
                {"device", device_->runtime().info().name},
                {"threads", cpu::threads()},
                {"ranks", job_.size()},
                {"zero", options_.zero},
                {"run", run_identity()}});
  if (step_ >= options_.steps && options_.steps > 0)
    say(fmt::format("nothing to do: {} of {} steps are done; raise --steps to go on\n", step_,
                    options_.steps));
  // mpirun gives ranks a terminal even where its own output goes to a file.
  printer_.emplace(step_, options_.steps, job_.size() == 1 && is_terminal(STDOUT_FILENO));
  const StopSignal signal;
  train_until(options_.steps, signal);
  finish(stop_asked(signal));
  job_.finish();
}

/// The signal that this rank or another one has received.
const char* Session::stop_asked(const StopSignal& signal) {
  const char* const here = signal.received();
  const auto all = job_.control().gather_values(here != nullptr ? 1 : 0, "stop");
  if (std::ranges::count(all, 1) == 0) return nullptr;
  return here != nullptr ? here : "a signal to another rank";
}

void Session::train_until(std::int64_t last, const StopSignal& signal) {
  while (step_ < last && stop_asked(signal) == nullptr) {
    job_.note(fmt::format("step {}", step_ + 1));
    const Stopwatch watch;
    const TrainStep result = training_.trainer.step(
        step_, loader_.batch(step_ + training_.trainer.spikes().skipped_batches()));
    ++step_;
    record_step(step_, result, watch.milliseconds());
    guard_numbers(step_, result);
    if (due(step_, options_.check_replicas)) check_replicas();
    if (step_ == last) break;
    if (due(step_, options_.val_every)) validate_now(step_);
    if (due(step_, options_.sample_every)) sample_now(step_);
    if (due(step_, options_.save_every)) save_now(step_);
    report_saves();
  }
}

void Session::check_replicas() {
  training_.parallel.optimizer.finish();
  training_.require_equal_copies(fmt::format("after step {}", step_));
}

void Session::record_step(std::int64_t step, const TrainStep& result, double milliseconds) {
  const auto tokens =
      static_cast<double>(options_.batch_size) * static_cast<double>(setup_.trainer.seq_len);
  const double rate = tokens / milliseconds * 1e3;
  const double mfu =
      rate * setup_.config.flops_per_token(setup_.trainer.seq_len) / (peak_rate_ * job_.size());
  last_loss_ = result.loss;
  Json fields{{"step", step},
              {"loss", result.loss},
              {"grad_norm", result.gradient_norm},
              {"lr", result.rate},
              {"tokens", tokens},
              {"step_ms", milliseconds},
              {"tokens_per_second", rate},
              {"mfu", mfu},
              {"memory_bytes", device_->arena().peak()},
              {"loss_scale", result.loss_scale},
              {"applied", result.applied}};
  fields.update(fields_of(result.report));
  log("train", fields);
  times_->step(training_.trainer.spans());
  printer_->step({.step = step,
                  .loss = result.loss,
                  .norm = result.gradient_norm,
                  .rate = result.rate,
                  .milliseconds = milliseconds,
                  .tokens_per_second = rate,
                  .mfu = mfu,
                  .memory = device_->arena().peak()});
}

void Session::guard_numbers(std::int64_t step, const TrainStep& result) {
  const std::string warning = bad_steps_.judge(step, result);
  if (warning.empty()) return;
  printer_->print("warning      " + warning);
  log("warning", {{"step", step}, {"message", warning}});
  bad_steps_.require_good(step);
}

void Session::validate_now(std::int64_t step) {
  if (!setup_.data.val) return;
  const Stopwatch watch;
  last_val_ = training_.trainer.evaluate(*setup_.data.val, options_.val_steps * job_.mesh().dp);
  const double ms = watch.milliseconds();
  printer_->print(
      fmt::format("val          step {}: loss {:.4f} ({:.0f} ms)", step, last_val_, ms));
  log("val", {{"step", step}, {"loss", last_val_}, {"ms", ms}});
}

void Session::sample_now(std::int64_t step) {
  if (options_.sample_tokens == 0 || !setup_.tokenizer) return;
  const std::vector<std::int32_t> prompt = sample_prompt(options_, setup_);
  const auto made = training_.sample(
      prompt, {.max_tokens = options_.sample_tokens,
               .sampling = {.temperature = 0.8,
                            .top_k = 200,
                            .seed = options_.seed + static_cast<std::uint64_t>(step)}});
  const std::string text = options_.prompt + setup_.tokenizer->decode(made);
  printer_->print(fmt::format("sample       step {}:\n---\n{}\n---", step, text));
  log("sample", {{"step", step}, {"prompt", options_.prompt}, {"text", text}});
}

void Session::save_now(std::int64_t step) {
  if (saved_step_ == step) return;
  job_.note("saving");
  check_replicas();
  require_finite_weights(training_.space, job_.control(), step);
  if (saver_.save(step, run_identity(), training_.checkpoint())) saved_step_ = step;
  report_saves();
}

/// What became of those that have ended.
void Session::report_saves() {
  for (const SaveResult& save : saver_.results()) {
    if (!save.warning.empty()) {
      printer_->print("warning      " + save.warning);
      log("warning", {{"step", save.step}, {"message", save.warning}});
    }
    if (!save.error.empty()) continue;
    printer_->print(fmt::format("checkpoint   {} ({:.0f} ms, {:.0f} of training)",
                                save.path.string(), save.total_ms, save.waited_ms));
    log("checkpoint", {{"step", save.step},
                       {"path", save.path.string()},
                       {"bytes", save.bytes},
                       {"ms", save.total_ms},
                       {"waited_ms", save.waited_ms}});
  }
}

void Session::export_now() {
  const auto save = [&](const fs::path& file) {
    save_weights(file, training_.checkpoint(), StoredType::F32);
  };
  if (job_.rank() > 0) return save({});
  export_model(output_ / "model", setup_.config, setup_.tokenizer.get(), StoredType::F32, save);
}

void Session::finish(const char* stopped_by) {
  if (stopped_by != nullptr)
    printer_->print(fmt::format("stopping     {} received after step {}", stopped_by, step_));
  if (!options_.no_save) {
    save_now(step_);
    saver_.settle();
    report_saves();
    saver_.require_saved(job_.control());
  }
  if (stopped_by == nullptr) {
    validate_now(step_);
    sample_now(step_);
  }
  training_.parallel.optimizer.settle();
  if (stopped_by == nullptr && !options_.no_save) export_now();
  log("end", {{"step", step_},
              {"loss", last_loss_},
              {"val_loss", last_val_},
              {"skipped_updates", bad_steps_.skipped()},
              {"skipped_spikes", bad_steps_.spikes()},
              {"pipeline", times_->finish()},
              {"planned_bytes", plan_.memory.peak},
              {"engine_peak_bytes", device_->arena().peak()},
              {"engine_host_peak_bytes", host_peak(host_)},
              {"resident_peak_bytes", resident_peak()},
              {"driver_used_bytes",
               setup_.device == DeviceKind::cuda ? Json(driver_used(*device_)) : Json(nullptr)},
              {"stopped_by", stopped_by != nullptr ? Json(stopped_by) : Json(nullptr)}});
  say(fmt::format(
      "\ndone         {} of {} steps, loss {:.4f}{}\n", step_, options_.steps, last_loss_,
      std::isfinite(last_val_) ? fmt::format(", validation {:.4f}", last_val_) : std::string()));
  say(fmt::format("{}memory       {} planned, {} used by tensors, {} resident at most\n{}",
                  bad_steps_.line(), format_bytes(plan_.memory.peak),
                  format_bytes(device_->arena().peak()), format_bytes(resident_peak()),
                  times_->line()));
  print_what_next(output_, stopped_by != nullptr, !options_.no_save);
}

}  // namespace

void run_training(TrainOptions options, const std::string& resolved, Job& job) {
  std::signal(SIGPIPE, SIG_IGN);  // see say() in progress.h
  if (options.plan) {
    cpu::set_threads(static_cast<int>(options.threads));
    return print_plan(options);
  }
  job.start(options);
  job.require_equal_options(resolved);
  RunSetup setup = resolve_with_split(options, job);
  Session(options, std::move(setup), resolved, job).run();
}

}  // namespace sluice
