#pragma once

#include <cstdlib>
#include <string>

#include "parallel/comm/backend/nccl_backend.h"
#include "tests/parallel/gpu_ranks.h"

namespace sluice::test {

/// Sets the options of the library that stands in for NCCL (tests/nccl/library.cpp), for
/// communicators that are made later.
inline void set_standin(const std::string& options) {
  ::setenv("SLUICE_NCCL_STANDIN", options.c_str(), 1);
}

/// `timeout`: seconds.
inline MakeBackend by_nccl(double timeout = 60) {
  return [=](const std::shared_ptr<Transport>& transport, const DevicePtr& device) {
    const auto from_first = [&](const std::string& text) {
      Communicator ranks(transport, nullptr, {.name = "nccl", .timeout = timeout});
      return ranks.share_text(text, 0, "unique id");
    };
    return make_nccl_backend(transport, connect_nccl(*transport, device, timeout, from_first));
  };
}

}  // namespace sluice::test
