#include "apps/cli/run_ranks.h"

#include <optional>

#include "apps/cli/progress.h"
#include "apps/cli/run_program.h"

namespace sluice {

int run_ranks(const std::string& name, const std::function<void(const World&)>& body) {
  std::optional<World> world;
  const auto run = [&] {
    world.emplace();
    set_speaking(world->rank() == 0);
    if (world->size() > 1) forget_terminal();
    body(*world);
    return 0;
  };
  return run_program(name, run, [&](std::string&, bool) {
    if (world) world->leave_after_the_first();
    return true;
  });
}

}  // namespace sluice
