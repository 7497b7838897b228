#include "apps/cli/parse/meant.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "engine/nearest_names.h"

namespace sluice {
namespace {

/// Names used by other programs, and what to write instead: a flag, perhaps with its value.
struct Meaning {
  const char* names;
  const char* text;
  const char* why = "";
  const char* of = "";  ///< a flag of the program that this is for; "": that of `text`
};
constexpr const char* counted_in_steps =
    "training is counted in steps: an epoch is the tokens of the data / the tokens of a batch";
constexpr const char* accumulated =
    "the gradients of --batch-size / --micro-batch micro-batches are added up before each update";
constexpr const char* scaled =
    "multiply the rate by the root of the batches' ratio, or by the ratio, as you see fit";
constexpr const char* placed =
    "it says for each block where weights and optimizer state are, who updates them and what is "
    "recomputed";
constexpr const char* by_launch = "one process a GPU: scripts/launch -n N, or mpirun -n N";

// If a name is in several rows, the first row whose flag the program has wins.
constexpr Meaning meanings[] = {
    {"model-name model-path model-dir model-name-or-path model-type pretrained weights m",
     "--model"},
    {"model model-name model-path model-dir model-name-or-path weights m", "--input"},
    {"n-layers num-layers layers num-hidden-layers depth", "--n-layer"},
    {"n-layer n-layers num-layers num-hidden-layers depth", "--layers"},
    {"n-heads num-heads heads num-attention-heads", "--n-head"},
    {"hidden-size hidden hidden-dim d-model embed-dim embedding-dim n-embed embd dim width",
     "--n-embd"},
    {"hidden-size hidden-dim d-ff", "--hidden"},
    {"n-embd d-model dim", "--width"},
    {"vocab n-vocab vocabulary", "--vocab-size"},
    {"max-new-tokens max-length length n-tokens num-tokens n", "--max-tokens"},
    {"block-size max-length max-seq-len max-seq-length context-length context-size ctx n-ctx "
     "n-positions max-position-embeddings",
     "--context"},
    {"sequence-length seq-length seq seqlen", "--seq-len"},
    {"block-size max-length sequence-length seq-length seq-len context", "--seq"},
    {"dataset train-data train-file data-path data-dir data-file train-path corpus text input i",
     "--data"},
    {"dataset data train-data train-file data-path text corpus file i", "--input"},
    {"data dataset input", "--tokens"},
    {"valid-data validation-data eval-data val-file validation-file test-data", "--val-data"},
    {"val-split validation-split val-ratio test-size", "--val-fraction"},
    {"tokenizer-path tokenizer-file tokenizer-name vocab-file merges-file", "--tokenizer-dir"},
    {"encoding tokenization", "--tokenizer"},
    {"shuffle no-shuffle", "--data-order"},
    {"bs batch batchsize train-batch-size global-batch-size total-batch-size "
     "per-device-train-batch-size b",
     "--batch-size"},
    {"bs batch-size b", "--batch"},
    {"micro-batch-size micro-bs mbs device-batch-size", "--micro-batch"},
    {"gradient-accumulation-steps gradient-accumulation grad-accumulation-steps grad-accum accum "
     "accumulate-grad-batches",
     "--micro-batch", accumulated},
    {"max-iters max-steps max-iter iters iterations num-iterations num-steps n-steps train-steps "
     "training-steps train-iters",
     "--steps"},
    {"epochs epoch num-epochs n-epochs max-epochs num-train-epochs", "--steps", counted_in_steps},
    {"optim opt", "--optimizer"},
    {"learning-rate learningrate max-lr rate", "--lr"},
    {"min-learning-rate learning-rate-min final-lr", "--min-lr"},
    {"warmup warmup-iters warm-up num-warmup-steps lr-warmup-steps", "--warmup-steps"},
    {"scheduler lr-scheduler lr-scheduler-type lr-decay decay-lr lr-decay-style", "--lr-schedule"},
    {"momentum adam-beta1 betas", "--beta1"},
    {"adam-beta2", "--beta2"},
    {"epsilon adam-epsilon adam-eps", "--eps"},
    {"wd decay l2 weightdecay", "--weight-decay"},
    {"clip clip-grad clip-grad-norm max-grad-norm gradient-clip gradient-clipping "
     "gradient-clip-val",
     "--grad-clip"},
    {"drop dropout-rate hidden-dropout resid-pdrop resid-dropout", "--dropout"},
    {"attn-pdrop attn-dropout attention-dropout embd-pdrop embd-dropout embedding-dropout",
     "--dropout", "--model shape.json, a config.json without weights, has each of its own"},
    {"text-format text-field skip-bad-lines special split-seed", "the program prepare_data",
     "a training reads text by its defaults", "--save-every"},
    {"link-bandwidth link-latency", "--link 25GB,2.5us", "bandwidth and latency"},
    {"network-bandwidth network-latency", "--network 400GB,5us", "bandwidth and latency"},
    {"no-save", "--save never"},
    {"async-save async-checkpoint", "--save background"},
    {"skip-loss-spike skip-grad-spike", "--skip-spikes", "it is for loss and gradient norm"},
    {"stream-chunk staging-chunks", "--stream-chunks 4194304*2",
     "parameters that stream at a time, and how many such chunks"},
    {"max-stash", "--stash input:1GiB"},
    {"muon-scale", "--optimizer muon-rms", "muon with steps as large as AdamW's"},
    {"virtual-stages num-layers-per-virtual-pipeline-stage", "--pipeline interleaved*2",
     "with the number of stages on each rank"},
    {"bias activation", "--model shape.json", "a config.json without weights has all of a shape"},
    {"lr-batch lr-scaling", "--lr", scaled},
    {"plan dry-run", "the program plan", "it takes the same flags", "--save-every"},
    {"eval-train", "the program evaluate", "it takes a checkpoint and any data", "--save-every"},
    {"fp16 half float16", "--precision fp16"},
    {"bf16 bfloat16", "--precision bf16"},
    {"tf32", "--precision tf32"},
    {"fp32 float32", "--precision fp32"},
    {"dtype amp mixed-precision torch-dtype data-type", "--precision"},
    {"fp16 half float16", "--dtype f16"},
    {"bf16 bfloat16", "--dtype bf16"},
    {"fp32 float32", "--dtype f32"},
    {"precision torch-dtype format type to out-type", "--dtype"},
    {"gpu gpu-type gpu-name card hardware profile", "--device-profile"},
    {"num-gpus n-gpus ngpu ngpus n-gpu devices world-size ranks num-processes", "--gpus"},
    {"gpu cuda use-cuda use-gpu", "--device cuda"},
    {"cpu no-cuda", "--device cpu"},
    {"gpus num-gpus n-gpus ngpu ngpus n-gpu devices nproc-per-node num-processes world-size ranks "
     "np n",
     "--dp", by_launch},
    {"num-threads n-threads nthreads workers num-workers cores jobs j t", "--threads"},
    {"gpus-per-node", "--ranks-per-node"},
    {"memory mem vram gpu-mem max-memory", "--gpu-memory"},
    {"memory mem ram cpu-memory host-mem", "--host-memory"},
    {"gradient-checkpointing activation-checkpointing checkpoint-activations recompute",
     "--placement auto:block", placed},
    {"offload-optimizer cpu-offload offload resident-blocks cpu-blocks host-blocks cpu-tables "
     "speculative-blocks",
     "--placement", placed},
    {"zero-stage zero1 zero-1 distributed-optimizer", "--zero 1"},
    {"zero2 zero-2 fsdp", "--zero 2"},
    {"tensor-parallel tensor-parallel-size tensor-model-parallel-size model-parallel", "--tp"},
    {"pipeline-parallel pipeline-parallel-size pipeline-model-parallel-size", "--pp"},
    {"data-parallel data-parallel-size", "--dp"},
    {"out-dir output-dir outdir out save-dir save output-path run-name run name o", "--output"},
    {"out output out-file output-file save o", "--dump"},
    {"checkpoint ckpt resume-from resume-from-checkpoint from-checkpoint load load-checkpoint "
     "restore "
     "continue init-from",
     "--resume"},
    {"checkpoint ckpt load init-from run", "--model"},
    {"save-interval save-steps save-freq checkpoint-every checkpoint-interval ckpt-every",
     "--save-every"},
    {"save-total-limit keep-checkpoints max-checkpoints", "--keep"},
    {"eval-interval eval-every eval-steps eval-freq val-interval validate-every", "--val-every"},
    {"eval-iters eval-batches val-batches val-iters", "--val-steps"},
    {"log-interval log-steps logging-steps print-every log-freq", "--log-every"},
    {"sample-interval generate-every", "--sample-every"},
    {"max-new-tokens sample-length", "--sample-tokens"},
    {"random-seed rng-seed manual-seed s", "--seed"},
    {"text start input p", "--prompt"},
    {"num-samples n-samples samples num-return-sequences", "--num"},
    {"temp", "--temperature"},
    {"greedy do-sample", "--temperature 0"},
    {"stop-sequence stop-token stop-text eos", "--stop"},
    {"no-kv-cache use-cache", "--no-cache"},
    {"config-file cfg conf c", "--config"},
    {"q silent", "--quiet"},
    {"v debug", "--verbose"},
    {"v", "--version"},
};

/// Synonyms of choices; if a word is listed twice, the first that is a choice wins.
constexpr std::pair<const char*, const char*> choice_words[] = {
    {"float32", "fp32"}, {"float", "fp32"},    {"single", "fp32"},
    {"32", "fp32"},      {"float16", "fp16"},  {"half", "fp16"},
    {"16", "fp16"},      {"bfloat16", "bf16"}, {"mixed", "bf16"},
    {"float32", "f32"},  {"fp32", "f32"},      {"float16", "f16"},
    {"fp16", "f16"},     {"half", "f16"},      {"gpu", "cuda"},
    {"nvidia", "cuda"},  {"adam", "adamw"},    {"adamw-8bit", "adamw8bit"},
    {"byte", "bytes"},   {"char", "chars"},    {"character", "chars"},
    {"bpe", "gpt2"},     {"tiktoken", "bpe"},  {"random", "shuffled"},
    {"cos", "cosine"},   {"none", "constant"}, {"none", "off"},
    {"cpu", "all"},
};

bool among(std::string_view name, const char* names) {
  std::istringstream words(names);
  for (std::string word; words >> word;)
    if (word == name) return true;
  return false;
}

std::string flag_of(const Meaning& meaning) {
  const std::string_view text = *meaning.of != '\0' ? meaning.of : meaning.text;
  return std::string(text.substr(0, text.find(' ')));
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& known) {
  const auto begins = [&](const std::string& other) {
    return name.size() >= 3 && other.starts_with(name);
  };
  if (std::ranges::count_if(known, begins) == 1) return *std::ranges::find_if(known, begins);
  std::string best;
  std::size_t distance = std::max<std::size_t>(3, name.size() / 2);
  // A short name must match in one letter at least, or any other would be as near.
  distance = std::min(distance, name.size());
  for (const std::string& other : known)
    if (const std::size_t d = edit_distance(name, other); d < distance) {
      distance = d;
      best = other;
    }
  return best;
}

FlagMeant flag_meant(std::string_view name, const std::function<bool(const std::string&)>& has) {
  for (const Meaning& meaning : meanings)
    if (among(name, meaning.names) && has(flag_of(meaning)))
      return {flag_of(meaning), meaning.text, meaning.why};
  return {};
}

std::string choice_meant(const std::string& value, const std::vector<std::string>& choices) {
  const std::string small = lower(value);
  const auto is_choice = [&](const std::string& word) {
    return std::ranges::find(choices, word) != choices.end();
  };
  if (is_choice(small)) return small;
  for (const auto& [word, choice] : choice_words)
    if (small == word && is_choice(choice)) return choice;
  return nearest_name(small, choices);
}

std::vector<std::string> flags_that_are_meant() {
  std::vector<std::string> flags;
  for (const Meaning& meaning : meanings)
    flags.push_back(flag_of(meaning));
  return flags;
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

}  // namespace sluice
