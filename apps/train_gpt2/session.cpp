#include "apps/train_gpt2/session.h"

#include <fmt/format.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/checkpoint/best_model.h"
#include "apps/checkpoint/checkpoint_saver.h"
#include "apps/checkpoint/model_folder.h"
#include "apps/checkpoint/save_cadence.h"
#include "apps/cli/progress.h"
#include "apps/data/tokens/loader.h"
#include "apps/output/run_log.h"
#include "apps/plan/cost/calibrate.h"
#include "apps/report/plan_advice.h"
#include "apps/report/plan_report.h"
#include "apps/report/start_event.h"
#include "apps/report/start_table.h"
#include "apps/report/step_printer.h"
#include "apps/report/train_event.h"
#include "apps/train/adapters.h"
#include "apps/train/diagnosis.h"
#include "apps/train/setup.h"
#include "apps/train/training.h"
#include "apps/train_gpt2/bad_steps.h"
#include "apps/train_gpt2/core_use.h"
#include "apps/train_gpt2/decided_options.h"
#include "apps/train_gpt2/resume.h"
#include "apps/train_gpt2/run_memory.h"
#include "apps/train_gpt2/run_times.h"
#include "apps/train_gpt2/split_times.h"
#include "apps/train_gpt2/stop_request.h"
#include "engine/io/durable.h"
#include "kernels/cpu/parallel_for.h"
#include "parallel/comm/keep_alive.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t steps_between_checks = 100;  ///< of the ranks' weights

class Session {
 public:
  Session(const TrainConfig& options, RunSetup setup, Job& job);
  void run();

 private:
  void require_agreement();
  void prepare_output();
  void load_or_initialize();
  void resume();
  void train_until(std::int64_t last);
  void now(const std::string& doing);  ///< for the ranks' records and replies to signals
  void log(std::string_view event, const Json& fields) {
    if (log_) log_->write(event, fields);
  }
  void record_step(std::int64_t step, const TrainStep& result, double milliseconds);
  void warn(std::int64_t step, const std::string& message);
  void guard_numbers(std::int64_t step, const TrainStep& result);
  void check_replicas();
  void validate_now(std::int64_t step);
  void sample_now(std::int64_t step);
  void save_now(std::int64_t step);
  void report_saves();
  void export_to(const fs::path& folder, const ModelNote& note = {});
  void finish();
  bool due(std::int64_t step, std::int64_t every) const { return every > 0 && step % every == 0; }

  const TrainConfig& options_;
  Job& job_;
  RunSetup setup_;
  CoreUse cores_;
  SaveCadence cadence_;
  std::unique_ptr<RunFolder> folder_;  ///< on rank 0 only
  fs::path output_;
  std::int64_t attended_ = 0;  ///< TokenSource::attended()
  double peak_rate_ = 0;       ///< FLOP/s of 100 % MFU: given, or measured before memory is taken
  Resumption found_;           ///< checkpoint to resume from
  DevicePtr device_;
  GpuLinks links_;
  Plan plan_;
  HostMemory host_;  ///< none if all state stays on the device
  Training training_;
  CheckpointSaver saver_;
  BatchLoader loader_;
  std::optional<RunLog> log_;  ///< on rank 0 only
  std::optional<RunTimes> times_;
  std::optional<StepPrinter> printer_;
  std::optional<StopRequest> stop_;
  const char* stopped_by_ = nullptr;  ///< the signal's name, once all ranks know of it
  TrainConfig decided_;               ///< options with all values decided
  nlohmann::json identity_;
  std::int64_t step_ = 0, saved_step_ = -1;  ///< updates done, and those of the last checkpoint
  BadSteps bad_steps_;
  BestModel best_;
  std::optional<double> last_loss_, last_val_;  ///< none: this start has computed none
};

Session::Session(const TrainConfig& options, RunSetup setup, Job& job)
    : options_(options),
      job_(job),
      setup_(std::move(setup)),
      cadence_(options.checkpoint.save_every),
      folder_(take_folder(options, job)),
      output_(path_for_all(folder_.get(), options, job)),
      attended_(setup_.data.train->attended(setup_.trainer.seq_len)),
      peak_rate_(options.log.peak_tflops ? *options.log.peak_tflops * 1e12
                                         : measure_matmul_rate(setup_.device, setup_.precision)),
      found_(find_checkpoint(options, output_, job)),
      device_(open_device(setup_.device, setup_.precision)),
      links_(job.connect(device_, setup_.pipeline.get())),  // takes GPU memory, so it comes first
      plan_(plan_here(options, setup_, found_, job, links_.bytes)),
      host_(reserve_memory(options, setup_, job.control(), device_, plan_)),
      training_(options, setup_, plan_.choice, device_, host_,
                job.ranks_on(device_, std::move(links_),
                             largest_exchanges(options, setup_, plan_.choice, job.mesh()))),
      saver_(output_ / "checkpoints", found_.keep, found_.saves, training_.copy),
      loader_(*setup_.data.train, sampler_of(options, setup_), options.batch.size,
              setup_.trainer.seq_len, options.batch_share() * job.replica(), options.batch_share()),
      decided_(decided_options(options, setup_, plan_.choice, output_, job.exchange())),
      identity_(run_identity(options, setup_)),
      bad_steps_(options.guard.max_bad_steps),
      best_(output_ / "best", job.control()) {
  require_agreement();
  // Nothing is written before all inputs have been read and found good.
  load_or_initialize();
  resume();
  if (options.data.skip_batches > 0 && saved_step_ < 0)
    fail("--skip-batches is for a run that is resumed, and there is no checkpoint to resume from",
         ErrorKind::usage);
  training_.trainer.spikes().skip_batches(found_.skip_batches);
  job.require_equal("step to start at", std::to_string(step_));
  training_.require_equal_copies("at the start");
  prepare_output();
}

void Session::require_agreement() {
  const auto& val = setup_.data.val;
  std::vector<Fact> facts{
      {.what = "validation data",
       .mine = val ? fmt::format("{}-{:08x}", val->size(), val->checksum()) : "none"}};
  for (const auto& [key, value] : identity_.items())
    facts.push_back({.what = key, .mine = value.dump()});
  job_.require_equal(facts);
}

void Session::prepare_output() {
  times_.emplace(options_, job_, setup_.pipeline, training_.trainer.started());
  keep_alive(job_.control(), "output", [&] {
    if (job_.rank() > 0) return;
    folder_->begin();
    if (setup_.tokenizer) setup_.tokenizer->save(output_ / "tokenizer");  // for its checkpoints
    log_.emplace(output_ / "log.jsonl");
    take_up(found_, output_);
    for (const auto& warning : found_.warnings)
      log("warning", {{"message", warning}});
    decided_.checkpoint.keep = found_.keep;
    const std::string config = config_text(decided_);
    write_file_durably(output_ / "config.toml", std::as_bytes(std::span(config)));
  });
}

void Session::load_or_initialize() {
  require_other_model(setup_.model_folder, output_);
  if (setup_.model_folder.empty()) return training_.space.initialize(options_.seed);
  keep_alive(job_.control(), "model",
             [&] { load_start(options_, setup_, training_.frozen.get(), training_.space); });
}

void Session::resume() {
  if (found_.checkpoint.empty()) return;
  step_ = load_checkpoint(found_.checkpoint, found_.manifest, identity_, training_.checkpoint());
  saved_step_ = step_;
  say(fmt::format("resumed      {} (step {})\n", found_.checkpoint.string(), step_));
  warn_of_rate(found_, setup_.schedule);
}

void Session::run() {
  const StartFacts facts{.step = step_,
                         .skipped_batches = training_.trainer.spikes().skipped_batches(),
                         .mesh = job_.mesh(),
                         .plan = plan_,
                         .matmul_flops = peak_rate_,
                         .device_name = device_->runtime().info().name,
                         .device_code = device_->runtime().info().code,
                         .saves = options_.checkpoint.saves() ? cadence_.text() : "none",
                         .keep = found_.keep,
                         .note = cores_.shortage(job_.control(), cpu::threads(), job_.local_size()),
                         .output = output_};
  print_start_table(options_, setup_, facts);
  printer_.emplace(StepPrinter::Options{
      .first_step = step_,
      .steps = options_.batch.steps,
      .fits = stdout_is_terminal(),
      .terminal = stdout_redraws(),
      .colours = stdout_has_colours(),
      .log_every = options_.log.verbose && !options_.log.every ? 1 : options_.log.every});
  stop_.emplace(options_.checkpoint.saves());
  stop_->saved(saved_step_);
  log("start", start_event(decided_, setup_, facts));
  warn(step_, unusual_rate(options_, setup_.schedule.rate));
  if (step_ == 0 && options_.evaluation.val_every > 0 && options_.batch.steps > 0) validate_now(0);
  train_until(options_.batch.steps);
  finish();
  stop_.reset();
  job_.finish();
}

void Session::now(const std::string& doing) {
  job_.note(doing);
  stop_->note(doing);
}

void Session::train_until(std::int64_t last) {
  while (true) {
    const auto wishes = stop_->agree(job_.control(), cadence_.due_by_time());
    stopped_by_ = wishes.stop;
    if (step_ >= last || stopped_by_ != nullptr) return;
    if (wishes.save) save_now(step_);
    now(fmt::format("step {}", step_ + 1));
    const Stopwatch watch;
    const TrainStep result = training_.trainer.step(
        step_, loader_.batch(step_ + training_.trainer.spikes().skipped_batches()));
    ++step_;
    record_step(step_, result, watch.milliseconds());
    guard_numbers(step_, result);
    if (due(step_, steps_between_checks)) check_replicas();
    if (step_ == last) continue;
    if (due(step_, options_.evaluation.val_every)) validate_now(step_);
    if (due(step_, options_.evaluation.sample_every)) sample_now(step_);
    if (cadence_.due_by_steps(step_)) save_now(step_);
    report_saves();
  }
}

void Session::check_replicas() {
  training_.parallel.optimizer.finish();
  training_.require_equal_copies(fmt::format("after step {}", step_));
}

void Session::record_step(std::int64_t step, const TrainStep& result, double milliseconds) {
  const auto tokens =
      static_cast<double>(options_.batch.size) * static_cast<double>(setup_.trainer.seq_len);
  const double rate = tokens / milliseconds * 1e3;
  const double flops = rate * setup_.config.flops_per_token(attended_);
  last_loss_ = result.loss;
  const StepPrinter::Line line{.step = step,
                               .loss = result.loss,
                               .norm = result.gradient_norm,
                               .rate = result.rate,
                               .milliseconds = milliseconds,
                               .tokens_per_second = rate,
                               .mfu = flops / (peak_rate_ * job_.size()),
                               .memory = device_->arena().peak(),
                               .details = options_.log.verbose ? spell(result.report) : ""};
  log("train", train_event(line, result, tokens));
  times_->step(training_.trainer.spans());
  printer_->step(line);
}

void Session::guard_numbers(std::int64_t step, const TrainStep& result) {
  const std::string warning = bad_steps_.record(step, result);
  warn(step, warning);
  if (!warning.empty()) bad_steps_.require_good(step);
}

void Session::warn(std::int64_t step, const std::string& message) {
  if (message.empty()) return;
  say_warning(message);
  log("warning", {{"step", step}, {"message", message}});
}

void Session::validate_now(std::int64_t step) {
  if (!setup_.data.val) return;
  now(fmt::format("the validation of step {}", step));
  const Stopwatch watch;
  const EvaluationBatches batches = validation_batches(options_, setup_);
  last_val_ = checked_validation(training_.trainer.evaluate(*setup_.data.val, batches), step);
  Validation result{.step = step, .loss = *last_val_};
  result.milliseconds = watch.milliseconds();
  printer_->print(text_of(result));
  log("val", val_event(result, batches));
  if (options_.checkpoint.keep_best && best_.improves(*last_val_)) {
    export_to(best_.folder(), best_.record(step));
    printer_->print(fmt::format("best         {}", best_.folder().string()));
  }
}

void Session::sample_now(std::int64_t step) {
  if (options_.evaluation.sample_tokens == 0 || !setup_.tokenizer) return;
  now(fmt::format("the sample of step {}", step));
  try {
    const std::string text = sample_text(options_, setup_, training_, step);
    printer_->print_sample(step, text);
    log("sample", {{"step", step}, {"prompt", options_.evaluation.prompt}, {"text", text}});
  } catch (const Error& error) {  // without it other ranks would go on with another operation
    if (job_.size() > 1 || error.kind() == ErrorKind::numerical) throw;
    warn(step, fmt::format("no sample after step {}: {}", step, error.what()));
  }
}

void Session::save_now(std::int64_t step) {
  if (saved_step_ == step) return;
  now(fmt::format("the save of step {}", step));
  const Stopwatch watch;
  check_replicas();
  require_finite_weights(training_.space, training_.model.names(), job_.control(), step);
  if (saver_.save(step, identity_, training_.checkpoint())) saved_step_ = step;
  stop_->saved(saved_step_);
  cadence_.saved(watch.milliseconds());
  report_saves();
}

void Session::report_saves() {
  for (const SaveResult& save : saver_.results()) {
    warn(save.step, save.warning);
    if (!save.error.empty()) continue;
    printer_->print(fmt::format("checkpoint   {} ({:.0f} ms, {:.0f} of training)",
                                save.path.string(), save.total_ms, save.waited_ms));
    log("checkpoint", {{"step", save.step},
                       {"path", save.path.string()},
                       {"bytes", save.bytes},
                       {"writers", save.writers},
                       {"ms", save.total_ms},
                       {"waited_ms", save.waited_ms}});
  }
}

void Session::export_to(const fs::path& folder, const ModelNote& note) {
  now(fmt::format("the export of the model to {}", folder.string()));
  training_.parallel.optimizer.synchronize();
  std::optional<ModelExport> files;
  keep_alive(job_.control(), "export", [&] {
    if (job_.rank() == 0) files.emplace(folder, setup_.config, note);
  });
  save_weights(files ? files->weights() : fs::path(), training_.checkpoint(), StoredType::F32);
  keep_alive(job_.control(), "export", [&] {
    if (files) files->publish(setup_.tokenizer.get(), StoredType::F32, setup_.model_folder);
  });
}

void Session::finish() {
  printer_->finish();
  const bool stopped = stopped_by_ != nullptr;
  if (stopped)
    printer_->print(fmt::format("stopping     {} received after step {}", stopped_by_, step_));
  if (!stopped) bad_steps_.require_some(step_, training_.optimizer->updates());
  if (options_.checkpoint.saves()) {
    save_now(step_);
    saver_.synchronize(job_.control());
    report_saves();
    saver_.require_saved(job_.control());
  }
  if (!stopped) validate_now(step_);
  if (options_.checkpoint.saves()) export_to(output_ / "model");
  if (!stopped) sample_now(step_);  // if it fails, the model is already saved
  log("end", {{"step", step_},
              {"loss", last_loss_ ? Json(*last_loss_) : Json(nullptr)},
              {"val_loss", last_val_ ? Json(*last_val_) : Json(nullptr)},
              {"skipped_updates", bad_steps_.skipped()},
              {"skipped_spikes", bad_steps_.spikes()},
              {"pipeline", times_->finish()},
              {"planned_bytes", plan_.memory.peak},
              {"engine_peak_bytes", device_->arena().peak()},
              {"engine_host_peak_bytes", host_peak(host_)},
              {"resident_peak_bytes", resident_peak()},
              {"driver_used_bytes",
               setup_.device == DeviceKind::cuda ? Json(driver_used(*device_)) : Json(nullptr)},
              {"stopped_by", stopped ? Json(stopped_by_) : Json(nullptr)}});
  print_done(step_, options_.batch.steps, last_loss_, last_val_);
  say_always(fmt::format("{}memory       {} planned, {} used by tensors, {} resident at most\n{}",
                         bad_steps_.line(), format_bytes(plan_.memory.peak),
                         format_bytes(device_->arena().peak()), format_bytes(resident_peak()),
                         times_->line()));
  print_what_next(output_, stopped, options_.checkpoint.saves());
}

}  // namespace

void run_training(TrainConfig options, const std::string& resolved, Job& job) {
  std::signal(SIGPIPE, SIG_IGN);  // see say() in progress.h
  set_quiet(options.log.quiet);
  job.start(options.machine, options.parallel);
  job.require_equal_options(resolved);
  Session(options, resolve_with_split(options, job), job).run();
}

}  // namespace sluice
