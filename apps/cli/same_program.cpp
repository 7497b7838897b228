#include "apps/cli/same_program.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>

#include "apps/cli/version.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/transport/mpi_transport.h"

namespace sluice {
namespace {

/// Returns the first bytes of the GNU build ID among ELF notes; "" if there is none.
std::string build_id_of(const std::byte* notes, std::size_t bytes) {
  constexpr std::size_t shown = 6;
  const auto aligned = [](std::size_t size) { return (size + 3) / 4 * 4; };
  std::size_t at = 0;
  while (at + sizeof(ElfW(Nhdr)) <= bytes) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof note);
    const std::size_t name = at + sizeof note, content = name + aligned(note.n_namesz);
    at = content + aligned(note.n_descsz);
    if (at > bytes) break;
    if (note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4 || note.n_descsz < shown ||
        std::memcmp(notes + name, "GNU", 4) != 0)
      continue;
    std::string id;
    for (const std::byte byte : std::span(notes + content, shown))
      id += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    return id;
  }
  return {};
}

/// Returns what the linker has made of this program's contents; without it the program's size.
std::string build() {
  std::string id;
  // The first object is the program itself.
  dl_iterate_phdr(
      [](dl_phdr_info* program, std::size_t, void* result) {
        for (int i = 0; i < program->dlpi_phnum; ++i) {
          const ElfW(Phdr)& part = program->dlpi_phdr[i];
          auto& found = *static_cast<std::string*>(result);
          if (part.p_type != PT_NOTE || !found.empty()) continue;
          const auto address = program->dlpi_addr + part.p_vaddr;
          // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader's addresses are numbers
          found = build_id_of(reinterpret_cast<const std::byte*>(address), part.p_memsz);
        }
        return 1;
      },
      &id);
  if (!id.empty()) return id;
  std::error_code ignored;
  return std::to_string(std::filesystem::file_size("/proc/self/exe", ignored));
}

}  // namespace

void require_same_program(Communicator& ranks) {
  require_equal(ranks, {{.what = "program",
                         .mine = fmt::format("{} build {}", version(), build()),
                         .advice = "start the same file on all hosts"},
                        {.what = "MPI library",
                         .mine = MpiProcess::library(),
                         .advice = "install the same one on all hosts"}});
}

}  // namespace sluice
