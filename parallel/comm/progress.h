#pragma once

#include <vector>

namespace sluice {

class Communicator;

/// Communicators of one rank, used by one thread, that advance together. A rank that waits in one
/// keeps the messages of all others going, which another rank may need before it can answer.
class Progress {
 public:
  void everything();

 private:
  friend class Communicator;
  std::vector<Communicator*> members_;
};

}  // namespace sluice
