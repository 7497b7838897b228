#pragma once

#include <string>

#include "kernels/base/error.h"

namespace sluice::test {

/// Returns the message of the sluice::Error that `action` throws, or "(no error)". Any other
/// exception passes through and so fails the test.
template <typename Action>
std::string error_message(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

}  // namespace sluice::test
