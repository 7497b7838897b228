#include "tests/nccl/meeting_place.h"

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <system_error>

namespace sluice::nccl_standin {

namespace fs = std::filesystem;

MeetingPlace::MeetingPlace(fs::path folder) : folder_(std::move(folder)) {
  fs::create_directories(folder_);
}

void MeetingPlace::leave(const std::string& name, const Bytes& bytes) const {
  const fs::path unfinished = folder_ / (name + ".new");
  std::ofstream(unfinished, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  std::error_code ignored;  // a rank that gave up has removed the folder
  fs::rename(unfinished, folder_ / name, ignored);
}

bool MeetingPlace::has(const std::string& name) const {
  std::error_code ignored;
  return fs::exists(folder_ / name, ignored);
}

std::optional<Bytes> MeetingPlace::look(const std::string& name) const {
  std::ifstream file(folder_ / name, std::ios::binary);
  if (!file) return std::nullopt;
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

void MeetingPlace::remove(const std::string& name) const {
  std::error_code ignored;
  fs::remove(folder_ / name, ignored);
}

void MeetingPlace::remove_all() const {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

std::string new_folder(const std::string& parent) {
  static std::atomic<int> made{0};
  return fs::path(parent) /
         ("sluice-nccl-" + std::to_string(::getpid()) + "-" + std::to_string(made++));
}

}  // namespace sluice::nccl_standin
