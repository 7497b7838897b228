#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "apps/checkpoint/model_folder.h"
#include "apps/cli/machine.h"
#include "engine/autograd.h"
#include "kernels/cpu/parallel_for.h"
#include "models/decoder/generate.h"
#include "models/decoder/weights.h"
#include "models/text/tokenizer.h"
#include "optim/make_optimizer.h"

// The extension module behind python/sluice/__init__.py, which documents what users call. That file
// checks types and passes ids as i64 arrays; ranges and shapes are checked here. Computing releases
// the interpreter's lock; one model or tokenizer is for one thread at a time.

namespace sluice {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using Ids = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IdList = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// Returns an array that owns its memory.
nb::ndarray<nb::numpy, float> array_of(std::vector<float> values, const Shape& shape) {
  auto* owned = new std::vector<float>(std::move(values));
  const nb::capsule owner(owned,
                          [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  const std::vector<std::size_t> sizes(shape.begin(), shape.end());
  return {owned->data(), sizes.size(), sizes.data(), owner};
}

std::vector<float> floats_of(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// Returns the value of a word, none for none. Throws Error (usage) for an unknown word.
template <class T, std::size_t N>
std::optional<T> choice_of(const char* what, const std::optional<std::string>& word,
                           const Choices<T, N>& choices) {
  if (!word) return std::nullopt;
  std::string known;
  for (const Choice<T>& choice : choices) {
    if (choice.name == *word) return choice.value;
    known += (known.empty() ? "" : ", ") + std::string(choice.name);
  }
  fail(fmt::format("{} '{}' is unknown; there are {}", what, *word, known), ErrorKind::usage);
}

/// Token ids [rows, length] of a model's vocabulary.
struct Batch {
  std::vector<std::int32_t> ids;
  Shape shape;
};

/// A GPT-2 with its weights and gradients on one device.
class Model {
 public:
  Model(const std::string& folder, const std::optional<std::string>& device,
        const std::optional<std::string>& precision) {
    const DeviceKind kind = choose_device(choice_of("device", device, devices));
    const Precision resolved =
        resolve_precision(choice_of("precision", precision, all_precisions), kind);
    if (resolved.loss_scaling)
      fail("fp16 needs loss scaling, which this module does not do; use bf16 or fp32",
           ErrorKind::usage);
    device_ = make_device(kind, resolved);
    loaded_ =
        load_model(find_model(folder), device_, resolved.dtype, ParameterSpace::Use::training);
  }

  const DecoderConfig& config() const { return loaded_.model->config(); }
  ParameterSpace& space() { return *loaded_.space; }

  std::vector<float> logits(const Batch& tokens) const {
    const NoGrad no_grad;
    return floats_of(loaded_.model->logits(loaded_.model->hidden(on_device(tokens))).to_host());
  }

  double loss(const Batch& tokens, const Batch& targets) const {
    const NoGrad no_grad;
    return loss_of(tokens, targets).item();
  }

  /// Computes the gradients of the mean loss, which it returns.
  double gradients(const Batch& tokens, const Batch& targets) {
    space().forget_gradients();
    const Tensor loss = loss_of(tokens, targets);
    backward(loss);
    space().zero_unused_gradients();
    return loss.item();
  }

  std::vector<std::int32_t> generate(const std::vector<std::int32_t>& prompt,
                                     const Generation& options) const {
    return sluice::generate(*loaded_.model, device_, prompt, options);
  }

  void save(const std::string& folder, const std::optional<std::string>& tokenizer) const {
    const auto texts = tokenizer ? load_tokenizer(*tokenizer) : nullptr;
    ModelExport files(folder, config());
    save_weights(files.weights(), *loaded_.space, StoredType::F32);
    files.publish(texts.get(), StoredType::F32);
  }

  std::vector<float> weights(const ParameterSpace::Slot& slot) const {
    std::vector<float> values(static_cast<std::size_t>(slot.size));
    if (loaded_.space->weight_dtype() == DType::f32) {
      loaded_.space->read_weights(slot.offset, std::as_writable_bytes(std::span(values)));
      return values;
    }
    std::vector<double> wide(values.size());
    loaded_.space->read_weights(slot.offset, std::as_writable_bytes(std::span(wide)));
    return floats_of(wide);
  }

  /// Throws Error (usage) for no ids and for ids outside the vocabulary.
  Batch checked(const Ids& ids, const char* what) const {
    const auto rows = static_cast<std::int64_t>(ids.shape(0));
    const auto length = static_cast<std::int64_t>(ids.shape(1));
    if (rows == 0 || length == 0)
      fail(fmt::format("{} has the shape [{}, {}]; it needs at least one id", what, rows, length),
           ErrorKind::usage);
    Batch batch{{}, {rows, length}};
    batch.ids.reserve(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::int64_t id = ids.data()[i];
      if (id < 0 || id >= config().vocab_size)
        fail(fmt::format("{}[{}, {}] is {}; ids are 0 to {}", what,
                         static_cast<std::int64_t>(i) / length,
                         static_cast<std::int64_t>(i) % length, id, config().vocab_size - 1),
             ErrorKind::usage);
      batch.ids.push_back(static_cast<std::int32_t>(id));
    }
    return batch;
  }

 private:
  Tensor on_device(const Batch& batch) const {
    require_length(config(), batch.shape[1], fmt::format("a sequence of {} ids", batch.shape[1]));
    return Tensor::from_tokens(device_, batch.shape, batch.ids);
  }

  Tensor loss_of(const Batch& tokens, const Batch& targets) const {
    if (tokens.shape != targets.shape)
      fail(fmt::format("tokens are [{}] and targets [{}]; they need the same shape",
                       fmt::join(tokens.shape, ", "), fmt::join(targets.shape, ", ")),
           ErrorKind::usage);
    const double count = static_cast<double>(tokens.ids.size());
    return loaded_.model->loss(on_device(tokens), on_device(targets), {.scale = 1 / count}).loss;
  }

  DevicePtr device_;
  LoadedModel loaded_;
};

/// AdamW for all parameters of a model.
class AdamW {
 public:
  AdamW(Model& model, const AdamWOptions& options, double clip)
      : model_(model), optimizer_(make_adamw(model.space(), options)), clip_(clip) {}

  double train_step(const Batch& tokens, const Batch& targets, double rate) {
    const double loss = model_.gradients(tokens, targets);
    optimizer_->step(rate, model_.space().clip_gradients(clip_));
    optimizer_->finish();
    norm_ = model_.space().gradient_norm();
    return loss;
  }
  /// The norm of all gradients of the last step, before clipping.
  double gradient_norm() const { return norm_; }

 private:
  Model& model_;
  std::unique_ptr<Optimizer> optimizer_;
  double clip_, norm_ = 0;
};

std::vector<std::int32_t> encode(const Tokenizer& tokenizer, const nb::bytes& text, bool special) {
  const std::string_view bytes(text.c_str(), text.size());
  return special ? tokenizer.encode_with_special(bytes) : tokenizer.encode(bytes);
}

std::string decode(const Tokenizer& tokenizer, const IdList& ids) {
  std::vector<std::int32_t> narrow;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids.data()[i] < 0 || ids.data()[i] >= tokenizer.vocab_size())
      fail(fmt::format("ids[{}] is {}; ids are 0 to {}", i, ids.data()[i],
                       tokenizer.vocab_size() - 1),
           ErrorKind::usage);
    narrow.push_back(static_cast<std::int32_t>(ids.data()[i]));
  }
  return tokenizer.decode(narrow);
}

}  // namespace

NB_MODULE(_sluice, module) {
  // A faulty argument is a ValueError; damaged files and a lack of memory are RuntimeErrors.
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetString(error.kind() == ErrorKind::usage ? PyExc_ValueError : PyExc_RuntimeError,
                      error.what());
    }
  });

  module.def("set_threads", &cpu::set_threads, "count"_a);

  nb::class_<Model>(module, "Model")
      .def(nb::init<const std::string&, const std::optional<std::string>&,
                    const std::optional<std::string>&>())
      .def("config",
           [](const Model& model) {
             const DecoderConfig& config = model.config();
             nb::dict fields;
             fields["n_layer"] = config.n_layer;
             fields["model_type"] = std::string(name_of(config.family));
             fields["n_head"] = config.n_head;
             fields["n_kv_head"] = config.kv_heads();
             fields["head_width"] = config.width_of_head();
             fields["n_embd"] = config.n_embd;
             fields["n_inner"] = config.inner();
             fields["vocab_size"] = config.vocab_size;
             fields["n_positions"] = config.n_positions;
             fields["layer_norm_epsilon"] = config.layer_norm_epsilon;
             return fields;
           })
      .def("logits",
           [](const Model& model, const Ids& tokens) {
             const Batch batch = model.checked(tokens, "tokens");
             std::vector<float> logits;
             {
               const nb::gil_scoped_release unlocked;
               logits = model.logits(batch);
             }
             return array_of(std::move(logits),
                             {batch.shape[0], batch.shape[1], model.config().vocab_size});
           })
      .def("loss",
           [](const Model& model, const Ids& tokens, const Ids& targets) {
             const Batch in = model.checked(tokens, "tokens");
             const Batch out = model.checked(targets, "targets");
             const nb::gil_scoped_release unlocked;
             return model.loss(in, out);
           })
      .def("generate",
           [](const Model& model, const Ids& tokens, std::int64_t max_new_tokens,
              double temperature, std::int64_t top_k, double top_p, std::uint64_t seed) {
             const Batch prompt = model.checked(tokens, "tokens");
             const Generation options{
                 .max_tokens = max_new_tokens,
                 .sampling = {
                     .temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = seed}};
             const nb::gil_scoped_release unlocked;
             return model.generate(prompt.ids, options);
           })
      .def("save", &Model::save)
      .def("parameters", [](Model& model) {
        nb::dict all;
        for (const auto& slot : model.space().slots()) {
          const std::vector<float> values = model.weights(slot);
          for (const StoredSlice& slice : slot.stored()) {
            const auto first = values.begin() + slice.first;
            all[slice.name.c_str()] = array_of(
                std::vector<float>(first, first + element_count(slice.shape)), slice.shape);
          }
        }
        return all;
      });

  nb::class_<AdamW>(module, "AdamW")
      .def(
          "__init__",
          [](AdamW* self, Model& model, double beta1, double beta2, double epsilon,
             double weight_decay, double clip) {
            new (self) AdamW(
                model,
                {.beta1 = beta1, .beta2 = beta2, .epsilon = epsilon, .weight_decay = weight_decay},
                clip);
          },
          nb::keep_alive<1, 2>())
      .def("train_step",
           [](AdamW& optimizer, Model& model, const Ids& tokens, const Ids& targets, double rate) {
             const Batch in = model.checked(tokens, "tokens");
             const Batch out = model.checked(targets, "targets");
             const nb::gil_scoped_release unlocked;
             return optimizer.train_step(in, out, rate);
           })
      .def("gradient_norm", &AdamW::gradient_norm);

  nb::class_<Tokenizer>(module, "Tokenizer")
      .def("encode", &encode)
      .def("decode",
           [](const Tokenizer& tokenizer, const IdList& ids) {
             const std::string text = decode(tokenizer, ids);
             return nb::bytes(text.data(), text.size());
           })
      .def("vocab_size", &Tokenizer::vocab_size)
      .def("end_of_text", &Tokenizer::end_of_text);
  module.def("load_tokenizer",
             [](const std::string& folder) { return load_tokenizer(find_model(folder)); });
}

}  // namespace sluice
