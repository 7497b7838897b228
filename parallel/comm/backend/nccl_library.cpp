#include "parallel/comm/backend/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// The first version with non-blocking communicators, which are needed to notice a missing rank.
constexpr int oldest = NCCL_VERSION(2, 14, 0);

void* open() {
  std::string why;
  for (const char* name : {"libnccl.so.2", "libnccl.so"}) {
    if (void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
    const char* message = ::dlerror();
    if (why.empty() && message != nullptr) why = message;
  }
  fail(
      fmt::format("NCCL cannot be loaded ({}); install the package libnccl2, which Debian and "
                  "NVIDIA have, or give the folder of libnccl.so.2 in LD_LIBRARY_PATH",
                  why));
}

template <class Function>
void find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
  if (function == nullptr)
    fail(
        fmt::format("the NCCL of this computer has no {}; install version 2.14 or newer of the "
                    "package libnccl2",
                    name));
}

NcclLibrary load() {
  // From 2.22 on NCCL would connect ranks, and take memory for it, when an operation first needs
  // it. Memory has to be planned before. A value in the environment stays.
  ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  void* const handle = open();
  NcclLibrary nccl;
  find(handle, "ncclGetVersion", nccl.get_version);
  find(handle, "ncclGetUniqueId", nccl.get_unique_id);
  find(handle, "ncclCommInitRankConfig", nccl.comm_init_rank_config);
  find(handle, "ncclCommFinalize", nccl.comm_finalize);
  find(handle, "ncclCommDestroy", nccl.comm_destroy);
  find(handle, "ncclCommAbort", nccl.comm_abort);
  find(handle, "ncclCommGetAsyncError", nccl.comm_get_async_error);
  find(handle, "ncclGetErrorString", nccl.get_error_string);
  find(handle, "ncclGetLastError", nccl.get_last_error);
  find(handle, "ncclAllReduce", nccl.all_reduce);
  find(handle, "ncclReduce", nccl.reduce);
  find(handle, "ncclBroadcast", nccl.broadcast);
  find(handle, "ncclAllGather", nccl.all_gather);
  find(handle, "ncclReduceScatter", nccl.reduce_scatter);
  find(handle, "ncclSend", nccl.send);
  find(handle, "ncclRecv", nccl.recv);
  find(handle, "ncclGroupStart", nccl.group_start);
  find(handle, "ncclGroupEnd", nccl.group_end);
  int version = 0;
  if (nccl.get_version(&version) != ncclSuccess || version < oldest)
    fail(
        fmt::format("the NCCL of this computer says that its version is {}, but 2.14 or newer "
                    "(21400) is needed; install a newer package libnccl2",
                    version));
  nccl.version = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  return nccl;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load();
  return library;
}

}  // namespace sluice
