#include "apps/output/program_folder.h"

#include <sys/auxv.h>

#include <system_error>

#include "apps/cli/shell_quote.h"

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

namespace {

/// cmake/Install.cmake has libexec/sluice.
bool installed() {
  const std::filesystem::path folder = program_folder();
  return folder.filename() == "sluice" && folder.parent_path().filename() == "libexec";
}

}  // namespace

std::filesystem::path shipped_files() {
  const std::filesystem::path beside = program_folder().parent_path();
  return (installed() ? beside.parent_path() : beside) / "share/sluice";
}

std::string command_of(const std::string& program) {
  if (installed()) return "sluice " + program;
  const std::filesystem::path file = program_folder() / program;
  std::error_code gone;  // a current folder that is deleted
  const std::filesystem::path here = std::filesystem::current_path(gone);
  return quoted((gone ? file : std::filesystem::proximate(file, here)).string());
}

}  // namespace sluice
