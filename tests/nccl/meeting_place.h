#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace sluice::nccl_standin {

using Bytes = std::vector<std::uint8_t>;

/// The ranks of a communicator, threads or processes, leave bytes for one another here: as files in
/// a folder. A file appears whole.
class MeetingPlace {
 public:
  /// Makes the folder if nobody has.
  explicit MeetingPlace(std::filesystem::path folder);

  void leave(const std::string& name, const Bytes& bytes) const;
  bool has(const std::string& name) const;
  /// Returns the bytes, or none if they are not there yet.
  std::optional<Bytes> look(const std::string& name) const;
  void remove(const std::string& name) const;
  void remove_all() const;

 private:
  std::filesystem::path folder_;
};

/// A name for a folder below `parent` that nobody else has.
std::string new_folder(const std::string& parent);

}  // namespace sluice::nccl_standin
