#pragma once

namespace CLI {
class App;
}

namespace sluice {

/// Lets --help look alike with every release of CLI11: those from 2.3 on write defaults in another
/// way, and those from 2.5 on break lines.
void set_help_format(CLI::App& app);

}  // namespace sluice
