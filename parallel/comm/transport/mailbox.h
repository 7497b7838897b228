#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice {

/// Carries letters between ranks beside all operations, for what is said when these fail. Any
/// thread may use it at any time, and no call waits. A letter to a rank that is gone is lost.
class Mailbox {
 public:
  struct Letter {
    int from = 0;
    std::string text;
  };

  Mailbox() = default;
  virtual ~Mailbox() = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  virtual void send(int to, std::string_view text) = 0;
  /// Returns a letter that has arrived, if there is one.
  virtual std::optional<Letter> fetch() = 0;
};

}  // namespace sluice
