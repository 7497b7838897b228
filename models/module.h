#pragma once

#include <vector>

#include "engine/parameter.h"

namespace sluice {

/// A model or a part of one: an ordered list of named parameters. The pointers in the list are to
/// members, so a Module stays where it was made.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// In the order in which they are laid out in memory.
  virtual std::vector<Parameter> parameters() = 0;
};

}  // namespace sluice
