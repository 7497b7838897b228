#pragma once

#include <vector>

#include "engine/parameter.h"

namespace sluice {

/// A model or a part of one: an ordered list of named parameters. The list points to members, so a
/// Module cannot be copied or moved.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// All parameters, in the order of their memory layout.
  virtual std::vector<Parameter> parameters() = 0;
};

}  // namespace sluice
