#pragma once

namespace sluice {

/// The commit that this was built from, "650a98b", or "unknown".
const char* commit();
/// The project's version and the commit: "0.1.0 650a98b".
const char* version();

}  // namespace sluice
