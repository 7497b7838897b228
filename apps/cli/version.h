#pragma once

namespace sluice {

/// Returns the commit that this was built from, "650a98b", or "unknown".
const char* commit();
/// Returns the project's version and the commit: "0.1.0 650a98b".
const char* version();

}  // namespace sluice
