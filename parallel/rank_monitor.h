#pragma once

#include <filesystem>
#include <optional>

#include "parallel/injection.h"
#include "parallel/monitor.h"
#include "parallel/ring_file.h"
#include "parallel/watchdog.h"

namespace sluice {

/// The monitor of a rank among others: its ring file, the watchdog over what it waits for, and the
/// fault that it was asked to make.
class RankMonitor final : public Monitor {
 public:
  /// `folder` is one that all ranks of this computer see, fresh for this job. `on_failure` is
  /// called from the watchdog's thread with the sentence for the user, and ends the job.
  RankMonitor(const std::filesystem::path& folder, int rank, int size, const Injection& injection,
              Watchdog::OnFailure on_failure);

  Fault before() override { return injection_.apply(rank_, operations_++); }
  std::uint64_t begin(std::string_view communicator, const Signature& signature) override;
  void wait(std::uint64_t number, double timeout) override;
  void end(std::uint64_t number) override;
  std::string post_mortem() override;
  /// Where this rank is, for a sentence of its own.
  std::string whereabouts() const;

  /// What the rank does between operations.
  void note(std::string_view text) { ring_.note(text); }
  void finish() { ring_.finish(); }
  void fail(std::string_view message) { ring_.fail(message); }

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  int rank_, size_;
  Injection injection_;
  std::uint64_t operations_ = 0;  ///< asked for so far, with one that is skipped
  RingFile ring_;
  Watchdog watchdog_;
};

}  // namespace sluice
