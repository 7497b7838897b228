#include "apps/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "apps/train/diagnosis.h"
#include "engine/autograd.h"

namespace sluice {

Trainer::Trainer(Decoder& model, ParameterSpace& space, DataParallel& ranks,
                 const RateSchedule& schedule, const Options& options, const DividedModel& divided)
    : model_(model),
      space_(space),
      ranks_(ranks),
      schedule_(schedule),
      options_(options),
      pipeline_(divided.pipeline),
      tensor_(divided.tensor),
      spikes_(options.spikes),
      numbers_(space.device(), micro_batches_of_step(), accumulator_of(space.working().dtype())),
      timeline_(space.device()) {
  if (options.graphs) graphs_.emplace(space.device(), accumulator_of(space.working().dtype()));
  if (pipeline_ == nullptr)
    upload_.emplace(space.device(), options.micro_batch, options.seq_len, micro_batches_of_step(),
                    options.copy_stream);
  else
    pipeline_->set_timeline(&timeline_);
  if (tensor_ != nullptr) tensor_->set_timeline(&timeline_);
  ranks.optimizer.set_timeline(&timeline_);
  ranks.gradients.set_timeline(&timeline_);
  if (options.loss_scaling) scaler_ = LossScaler(LossScaler::State{});
  for (std::int64_t layer = 0; layer < model.config().n_layer; ++layer) {
    std::int64_t end = 0;
    for (const auto& slot : space.slots())
      if (slot.section == Decoder::section_of(layer)) end = slot.offset + slot.size;
    ends_.push_back(end);
  }
  ends_.push_back(space.size());
  model.set_before_weights([this](std::int64_t layer) {
    ranks_.optimizer.update_through(ends_[static_cast<std::size_t>(layer)]);
    enter(layer);
  });
}

std::int64_t Trainer::micro_batches_of_step() const {
  return std::max<std::int64_t>(1, options_.batch_size / ranks_.replicas() / options_.micro_batch);
}

void Trainer::set_block_inputs(HostStack* inputs) {
  block_inputs_ = inputs;
  block_inputs_->set_timeline(&timeline_);
}

Trainer::~Trainer() {
  if (block_inputs_ != nullptr) block_inputs_->set_timeline(nullptr);
  ranks_.optimizer.set_timeline(nullptr);
  ranks_.gradients.set_timeline(nullptr);
  if (pipeline_ != nullptr) pipeline_->set_timeline(nullptr);
  if (tensor_ != nullptr) tensor_->set_timeline(nullptr);
  model_.set_before_weights({});
}

/// Computes the gradients of this rank's micro-batches and reduces them over the ranks.
void Trainer::compute(const MicroBatches& batch, std::optional<double> rate) {
  space_.forget_gradients();
  if (pipeline_ != nullptr)
    compute_in_pipeline(batch);
  else
    compute_alone(batch, rate);
  ranks_.gradients.finish();
}

void Trainer::compute_alone(const MicroBatches& batch, std::optional<double> rate) {
  const auto piece = static_cast<std::size_t>(batch.rows * batch.seq_len);
  const auto upload = [&](std::size_t first) {
    if (first < batch.tokens.size())
      upload_->start(batch.tokens.subspan(first, piece), batch.targets.subspan(first, piece));
  };
  DropoutSource dropout = batch.dropout;
  int micro_batch = 0;
  // A plan's device has no graphs. A step that is computed again, to find a fault, is looked at
  // kernel by kernel.
  const bool repeats = rate && space_.device()->device().kind == DeviceKind::cuda;
  PassGraphs* const graphs = graphs_ && repeats ? &*graphs_ : nullptr;
  const auto pass = [&](const char* name, const std::function<void()>& work) {
    const Recorded span(&timeline_, name, Timeline::Lane::compute, space_.device()->stream());
    if (graphs != nullptr)
      graphs->run(work);
    else
      work();
  };
  upload(0);
  for (std::size_t first = 0; first < batch.tokens.size(); first += piece) {
    upload(first + piece);
    const BatchUpload::MicroBatch given = upload_->take();
    if (graphs != nullptr)
      graphs->choose({.tokens = given.tokens.view().address,
                      .accumulate = first > 0,
                      .loss_scale = batch.loss.loss_scale});
    Tensor loss;
    pass("forward", [&] {
      loss = model_
                 .loss(given.tokens, given.targets, batch.loss, dropout,
                       batch.documents_of(micro_batch))
                 .loss;
      if (graphs != nullptr) graphs->keep_loss(loss);
      // The backward pass overwrites gradients that pending updates still read.
      ranks_.optimizer.finish();
    });
    numbers_.keep_loss(micro_batch++, graphs != nullptr ? graphs->loss() : loss);
    dropout.first_sample += batch.rows;
    if (first + piece >= batch.tokens.size()) {
      ranks_.optimizer.prefetch();
      ranks_.gradients.expect();
      if (speculation_ != nullptr && rate) speculation_->begin(*rate, 1 / scaler_.scale());
    }
    pass("backward", [&] { backward(loss); });
    if (graphs != nullptr && graphs->repeats()) space_.count_gradients_as_written();
    upload_->done();
  }
}

void Trainer::compute_in_pipeline(const MicroBatches& batch) {
  numbers_.clear_losses();  // only the last stage's rank sets them
  const bool sums_overlap = ranks_.replicas() > 1 && ranks_.gradients.overlaps();
  const auto half = static_cast<int>(micro_batches_of_step() / 2);
  bool first = true;
  pipeline_->step(batch,
                  {.loss = [this](int m, const Tensor& loss) { numbers_.keep_loss(m, loss); },
                   .before_first_backward = [this] { ranks_.optimizer.finish(); },
                   .before_last_backward =
                       [&](const SpaceRange& range) {
                         if (std::exchange(first, false)) ranks_.optimizer.prefetch();
                         ranks_.gradients.expect(range);
                       },
                   .before_backward =
                       [&](const DecoderPart& part, int micro_batch) {
                         enter(part.first);
                         // Half of the passes hide the sums of the section before, and half
                         // their copies.
                         if (micro_batch == half) drain_gradients();
                         if (weights_ != nullptr && micro_batch == 0)
                           weights_->begin_gradients(Decoder::section_of(part.first));
                       },
                   .after_last_backward =
                       [&](const DecoderPart& part) {
                         if (weights_ == nullptr) return;
                         undrained_ = Decoder::section_of(part.first);
                         ranks_.gradients.start_resting(*undrained_);
                         if (!sums_overlap) drain_gradients();
                       }});
  drain_gradients();
}

/// Sends the gradients of the section that backward has completed last to the host.
void Trainer::drain_gradients() {
  if (!undrained_) return;
  ranks_.gradients.join_resting();
  weights_->drain_gradients(*std::exchange(undrained_, std::nullopt));
}

/// Makes a block's weights visit the device if they rest in host memory.
void Trainer::enter(std::int64_t layer) {
  if (weights_ == nullptr) return;
  weights_->enter(Decoder::section_of(layer));
  // While updates are pending, the weights of the next block are not final.
  if (!ranks_.optimizer.pending()) weights_->prefetch();
}

/// Adds up the losses of all micro-batches in the order of the batch. `micro_batches`: of a
/// replica.
double Trainer::sum_of_losses(std::int64_t micro_batches) {
  const std::int64_t all = ranks_.replicas() * micro_batches;
  std::vector<double> losses(static_cast<std::size_t>(all));
  if (ranks_.reports_loss)
    std::ranges::copy(numbers_.losses(micro_batches),
                      losses.begin() + ranks_.replica() * micro_batches);
  // One rank of a replica has the losses, and the others have zeros, so the sums are exact.
  ranks_.control
      .all_reduce({reinterpret_cast<std::byte*>(losses.data()), DType::f64, {all}},
                  {.label = "losses", .any_order = true})
      ->wait();
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

TrainStep Trainer::step(std::int64_t step, const Batch& batch) {
  // Counts the targets of all ranks: gradients are summed over ranks and not divided afterwards.
  const std::int64_t targets = batch.counted.value_or(options_.batch_size * options_.seq_len);
  TrainStep result{.rate = schedule_.at(step), .loss_scale = scaler_.scale()};
  if (targets == 0) {
    result.applied = false;
    result.reason = "no target of the batch counts";
    return result;
  }
  const MicroBatches micro_batches{
      .tokens = batch.tokens,
      .targets = batch.targets,
      .rows = options_.micro_batch,
      .seq_len = options_.seq_len,
      .loss = {.scale = 1.0 / static_cast<double>(targets),
               .loss_scale = scaler_.scale(),
               .chunk = options_.head_chunk},
      .dropout = {.seed = options_.seed,
                  .step = static_cast<std::uint64_t>(step),
                  .first_sample = batch.first_sequence,
                  .probability = static_cast<float>(options_.dropout.residual),
                  .attention = static_cast<float>(options_.dropout.attention),
                  .embedding = static_cast<float>(options_.dropout.embedding),
                  .adapters = static_cast<float>(model_.config().lora.dropout)},
      .documents = batch.documents};
  const std::int64_t undone = speculation_ != nullptr ? speculation_->undone() : 0;
  compute(micro_batches, result.rate);
  const Tensor& factor = ranks_.optimizer.clip_gradients(options_.grad_clip, scaler_.scale());
  // Launches the update before the host waits for the norm: if the norm is not finite, the kernels
  // change nothing. But a spike guard has to see loss and norm before the update. With speculative
  // updates step() itself waits for the scale.
  numbers_.keep_norm(space_.norm());
  timeline_.close_step();
  if (!spikes_.active()) ranks_.optimizer.step(result.rate, factor);
  result.gradient_norm = numbers_.norm();
  result.loss = sum_of_losses(static_cast<std::int64_t>(batch.tokens.size()) /
                              (options_.micro_batch * options_.seq_len));
  const bool finite = std::isfinite(result.gradient_norm);
  result.applied = finite;
  if (spikes_.active()) {
    if (finite) result.reason = spikes_.reason_to_skip(result.loss, result.gradient_norm);
    result.applied = finite && result.reason.empty();
    if (result.applied) {
      ranks_.optimizer.step(result.rate, factor);
      spikes_.keep(result.loss, result.gradient_norm);
    } else if (speculation_ != nullptr) {
      speculation_->cancel();
    }
  } else if (!finite) {
    ranks_.optimizer.roll_back();
  }
  spans_ = timeline_.take();
  result.report = report_of(spans_, moved());
  if (speculation_ != nullptr) result.report.taken_back = speculation_->undone() > undone;
  if (!finite) diagnose(micro_batches, result);
  scaler_.update(finite);
  return result;
}

/// Returns the bytes copied for the previous step's updates and for this step's block inputs.
StreamedBytes Trainer::moved() {
  StreamedBytes bytes = ranks_.optimizer.moved();
  if (block_inputs_ != nullptr) bytes += block_inputs_->take_moved();
  if (pipeline_ != nullptr) bytes += pipeline_->take_moved();
  if (weights_ != nullptr) bytes += weights_->take_moved();
  return bytes;
}

/// Computes the step again under a Diagnosis, unless the weights or the loss scale explain the
/// fault. The next step overwrites its gradients and losses.
void Trainer::diagnose(const MicroBatches& batch, TrainStep& result) {
  ranks_.optimizer.finish();  // weights from other ranks may still be in flight
  Diagnosis diagnosis(space_, model_.names());
  diagnosis.look_at_weights();
  Sighting first = diagnosis.first(ranks_.control);
  result.weights_finite = first.phase == Sighting::Phase::nowhere;
  if (result.weights_finite) {
    if (scaler_.scale() > 1) return;
    const Observed observed(diagnosis);
    compute(batch);
    first = diagnosis.first(ranks_.control);
  }
  result.reason = first.phase == Sighting::Phase::nowhere
                      ? "every tensor is when the step is computed again: sums over ranks or "
                        "of squares overflowed, or the fault has passed"
                      : fmt::format("first seen in {}{}", first.text,
                                    result.weights_finite ? "" : " before the step");
  timeline_.take();
  moved();
}

std::vector<double> Trainer::evaluate_here(const TokenSource& tokens,
                                           const EvaluationBatches& batches) const {
  const std::int64_t count = batches.rows() * batches.seq_len();
  Sequences sequences;
  std::vector<double> losses;
  for (std::int64_t i = ranks_.replica(); i < batches.count(); i += ranks_.replicas()) {
    batches.read(tokens, i, sequences);
    if (pipeline_ == nullptr)
      losses.push_back(
          loss_of(model_, space_.device(), std::exchange(sequences, {}), batches.rows()));
  }
  if (pipeline_ == nullptr) return losses;
  losses.resize(sequences.tokens.size() / static_cast<std::size_t>(count));
  pipeline_->evaluate({.tokens = sequences.tokens,
                       .targets = sequences.targets,
                       .rows = batches.rows(),
                       .seq_len = batches.seq_len(),
                       .loss = {.scale = 1.0 / static_cast<double>(count)},
                       .documents = sequences.documents},
                      static_cast<int>(losses.size()), [&](int i, const Tensor& loss) {
                        losses[static_cast<std::size_t>(i)] = loss.item();
                      });
  return losses;
}

double Trainer::evaluate(const TokenSource& tokens, const EvaluationBatches& batches) const {
  const NoGrad no_grad;
  // A rank without a batch of its own still takes part in gathering the weights.
  ranks_.optimizer.finish();
  const std::vector<double> losses =
      gather_losses(ranks_.control, evaluate_here(tokens, batches), batches.count(),
                    ranks_.replica(), ranks_.replicas(), ranks_.reports_loss);
  const double mean =
      std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  if (!tokens.in_rows()) return mean;
  // Each loss is a sum divided by all targets of a batch.
  const std::int64_t all = batches.count() * batches.rows() * batches.seq_len();
  return mean * static_cast<double>(all) / static_cast<double>(batches.counted(tokens));
}

double Trainer::evaluate(const TokenSource& tokens, std::int64_t sequences) const {
  return evaluate(tokens, EvaluationBatches(tokens, sequences, options_.seq_len));
}

}  // namespace sluice
