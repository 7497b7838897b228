#pragma once

#include <string>

namespace sluice::test {

/// Tells that this case cannot check what it says, and why. ctest then lists it as skipped, unless
/// something in it fails. Do not call it for what a case only checks in addition.
void skip(const std::string& why);

}  // namespace sluice::test
