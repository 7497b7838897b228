#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/config/train_config.h"
#include "kernels/base/dtype.h"
#include "models/decoder/placement.h"

namespace sluice {

/// The knowledge that a rule needs before it can be judged.
enum class Known : std::uint8_t {
  options,  ///< what the user asks for
  run,      ///< the model and the data too
  machine   ///< and how fast it copies
};

/// A run, as far as rules look at it. Only `o` is there from the start.
struct RunFacts {
  const TrainConfig& o;

  // From Known::run on.
  const DecoderConfig* model = nullptr;
  DropoutConfig dropout{};
  bool gpu = false;            ///< it computes on one
  bool has_data = false;       ///< the data has been read
  bool pairs = false;          ///< batches of pairs, which have unequal numbers of targets
  bool can_sample = false;     ///< there is a tokenizer
  bool can_validate = false;   ///< there is data for it
  std::string data_name{};     ///< the training data's, for messages
  DType working = DType::f32;  ///< of weights and activations

  // From Known::machine on.
  bool copies_fast = false;  ///< between host and GPU, as was measured
  PlacementRequest placement{};
};

/// A rule between options, or between options and a run. All are in one table, rules(), from which
/// docs/reference/option-rules.md is made.
struct Rule {
  Known from;
  const char* options;  ///< one, or several with spaces between
  const char* beside;   ///< options that they do not go with, or other words
  const char* why;
  /// Returns the sentence for a run that breaks the rule, or "".
  std::string (*broken)(const RunFacts& facts, const Rule& rule);
};

/// All rules, those of options first.
std::vector<Rule> rules();

/// Throws Error (usage) with the sentence of the first rule that is broken, of those that can be
/// judged once `known` is known and not before.
void require_rules(const RunFacts& facts, Known known);

}  // namespace sluice
