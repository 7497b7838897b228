#pragma once

#include <span>
#include <string>
#include <string_view>

#include "apps/config/rules.h"

namespace sluice {

/// The rules of Known::options, and those of a run.
std::span<const Rule> option_rules();
std::span<const Rule> run_rules();

namespace rule_words {

// Helpers of the two tables.

using F = const RunFacts&;
using R = const Rule&;

inline std::string when(bool broken, const std::string& sentence) {
  return broken ? sentence : "";
}

/// Returns a sentence if one of the rule's options was given, to no effect. `even_default`: also
/// one that repeats its default, since what it says is not what happens.
std::string idle(F f, R rule, const std::string& why, bool even_default = false);

inline bool uses(F f, OptimizerKind kind) {
  return f.o.optimizer.kind == kind;
}
inline std::string_view optimizer(F f) {
  return name_in(optimizers, f.o.optimizer.kind);
}
inline bool layer_major(F f) {
  return f.o.parallel.layer_major();
}
/// True if the options are about several ranks, or about a pipeline.
inline bool among_ranks(F f) {
  return f.o.parallel.mesh().size() > 1 || f.o.parallel.pipelined() || f.o.planning.scaling;
}

}  // namespace rule_words
}  // namespace sluice
