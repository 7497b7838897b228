#include "apps/output/program_folder.h"

#include <sys/auxv.h>

#include <system_error>

namespace sluice {

std::filesystem::path program_folder() {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    // The path that started the program still holds, since nothing changes the working folder.
    const auto* const started = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
    program = fs::canonical(started != nullptr ? started : ".", error);
  }
  return program.parent_path();
}

}  // namespace sluice
