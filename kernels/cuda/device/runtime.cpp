#include "kernels/base/runtime.h"

#include <fstream>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "kernels/base/pinned_ranges.h"
#include "kernels/cuda/attention_wgmma.h"
#include "kernels/cuda/device/gemm_plan.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/stream_handle.h"

namespace sluice {
namespace {

using namespace cuda;

/// CUDA 13 compiles for nothing older than Turing.
constexpr int oldest_capability = 75;
/// Memory left to the driver: code of kernels loaded at first use, and its own queues.
constexpr std::size_t left_to_driver = std::size_t{256} << 20;

struct QueueDeleter {
  void operator()(DeviceQueue* queue) const {
    if (queue->handle != nullptr) cudaStreamDestroy(queue->handle);
    delete queue;
  }
};

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};

struct GraphDeleter {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};

struct GraphExecDeleter {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};

cudaGraphExec_t handle_of(Graph graph) {
  return reinterpret_cast<cudaGraphExec_t>(graph.id);  // NOLINT(performance-no-int-to-ptr)
}

cudaEvent_t handle_of(Event event) {
  return reinterpret_cast<cudaEvent_t>(event.id);  // NOLINT(performance-no-int-to-ptr)
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  SLUICE_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

/// True if an allocation was refused; throws Error for all other faults.
bool refused(cudaError_t status) {
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, which later calls would report
    return true;
  }
  SLUICE_CUDA_CHECK(status);
  return false;
}

/// Returns "580.65.06, CUDA 13.0", or only the latter if the system does not report the former.
std::string driver_version() {
  int supported = 0;
  SLUICE_CUDA_CHECK(cudaDriverGetVersion(&supported));
  const std::string cuda =
      "CUDA " + std::to_string(supported / 1000) + "." + std::to_string(supported % 1000 / 10);
  std::string release;
  std::ifstream("/sys/module/nvidia/version") >> release;
  return release.empty() ? cuda : release + ", " + cuda;
}

class CudaRuntime final : public Runtime {
 public:
  explicit CudaRuntime(int index) : index_(index) {
    select();
    cudaDeviceProp properties{};
    SLUICE_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    name_ = properties.name;
    uuid_ = cuda_uuid(index);
    memory_ = properties.totalGlobalMem;
    multiprocessors_ = properties.multiProcessorCount;
    capability_ = 10 * properties.major + properties.minor;
    if (capability_ < oldest_capability)
      fail(name_ + " has compute capability " + std::to_string(capability_) +
               ", but the CUDA kernels need " + std::to_string(oldest_capability) +
               " or newer; use --device cpu",
           ErrorKind::usage);
    code_ = image();
    l2_bytes_ = static_cast<std::size_t>(attribute(cudaDevAttrL2CacheSize, index));
    shared_limit_ =
        static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
    reads_host_tables_ = attribute(cudaDevAttrPageableMemoryAccessUsesHostPageTables, index) != 0;
    gemms_ = std::make_unique<GemmPlans>();
    compute_ = CudaRuntime::make_stream();
  }
  ~CudaRuntime() override { cudaSetDevice(index_); }  // for the members' destructors

  Device device() const override { return {DeviceKind::cuda, index_}; }
  DeviceInfo info() const override {
    return {.name = name_,
            .capability = capability_,
            .multiprocessors = multiprocessors_,
            .memory = memory_,
            .free_memory = free_memory(),
            .driver = driver_version(),
            .code = code_,
            .wgmma_attention = has_attention_wgmma(capability_),
            .uuid = uuid_};
  }

  std::byte* reserve(std::size_t bytes) override {
    select();
    void* start = nullptr;
    return refused(cudaMalloc(&start, bytes)) ? nullptr : static_cast<std::byte*>(start);
  }
  // Destructors release memory. A fault of an earlier kernel must not end the program there before
  // somebody has reported it, so errors are ignored.
  void release(std::byte* start, std::size_t) override {
    cudaSetDevice(index_);
    cudaFree(start);
  }
  std::size_t capacity() const override {
    const std::size_t bytes = free_memory();
    return bytes > left_to_driver ? bytes - left_to_driver : 0;
  }

  std::byte* reserve_pinned(std::size_t bytes) override {
    select();
    void* start = nullptr;
    // Portable: the memory is pinned for the runtimes of other devices too.
    return refused(cudaHostAlloc(&start, bytes, cudaHostAllocPortable))
               ? nullptr
               : static_cast<std::byte*>(start);
  }
  void release_pinned(std::byte* start, std::size_t) override {
    cudaSetDevice(index_);
    cudaFreeHost(start);
  }

  bool pin(std::byte* start, std::size_t bytes) override {
    select();
    if (cudaHostRegister(start, bytes, cudaHostRegisterPortable) != cudaSuccess) {
      cudaGetLastError();  // not a fault, so the next launch must not report it
      return false;
    }
    pinned_.add(start, bytes);
    return true;
  }
  void unpin(std::byte* start) override {
    pinned_.remove(start);
    cudaSetDevice(index_);
    cudaHostUnregister(start);
  }

  /// NVIDIA's recommended workspace sizes for cuBLASLt.
  std::size_t workspace_bytes() const override {
    return std::size_t{capability_ >= 90 ? 64u : 32u} << 20;
  }
  void set_workspace(Stream stream, std::byte* start, std::size_t bytes) override {
    cuda::set_workspace(queue_of(stream), start, bytes);
    CudaRuntime::fill_zero(start, arrivals_bytes, stream);
  }

  Stream compute_stream() const override { return compute_; }
  Stream make_stream() override {
    select();
    std::unique_ptr<DeviceQueue, QueueDeleter> queue(new DeviceQueue);
    queue->capability = capability_;
    queue->multiprocessors = multiprocessors_;
    queue->shared_limit = shared_limit_;
    queue->l2_bytes = l2_bytes_;
    queue->device = index_;
    queue->gemms = gemms_.get();
    // A non-blocking stream waits for other streams only when told to.
    SLUICE_CUDA_CHECK(cudaStreamCreateWithFlags(&queue->handle, cudaStreamNonBlocking));
    const std::lock_guard lock(mutex_);
    queues_.push_back(std::move(queue));
    return {device(), reinterpret_cast<std::uint64_t>(static_cast<Queue*>(queues_.back().get()))};
  }
  void synchronize(Stream stream) override {
    SLUICE_CUDA_CHECK(cudaStreamSynchronize(cuda::handle_of(stream)));
  }

  Event make_event() override {
    select();
    cudaEvent_t event = nullptr;
    SLUICE_CUDA_CHECK(cudaEventCreate(&event));
    const std::lock_guard lock(mutex_);
    events_.emplace_back(event);
    return {reinterpret_cast<std::uint64_t>(events_.back().get())};
  }
  void record(Event event, Stream stream) override {
    SLUICE_CUDA_CHECK(cudaEventRecord(handle_of(event), cuda::handle_of(stream)));
  }
  void wait(Stream stream, Event event) override {
    SLUICE_CUDA_CHECK(cudaStreamWaitEvent(cuda::handle_of(stream), handle_of(event), 0));
  }
  void synchronize(Event event) override {
    select();
    SLUICE_CUDA_CHECK(cudaEventSynchronize(handle_of(event)));
  }
  bool reached(Event event) override {
    select();
    const cudaError_t status = cudaEventQuery(handle_of(event));
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // not a fault, so the next launch must not report it
      return false;
    }
    SLUICE_CUDA_CHECK(status);
    return true;
  }
  double milliseconds(Event from, Event to) override {
    select();
    float milliseconds = 0;
    SLUICE_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, handle_of(from), handle_of(to)));
    return static_cast<double>(milliseconds);
  }

  // The capture is relaxed: calls that are no work of the stream, such as one that raises a
  // kernel's limit of shared memory, are made at once.
  void begin_capture(Stream stream) override {
    SLUICE_CUDA_CHECK(
        cudaStreamBeginCapture(cuda::handle_of(stream), cudaStreamCaptureModeRelaxed));
  }
  Graph end_capture(Stream stream) override {
    cudaGraph_t recorded = nullptr;
    SLUICE_CUDA_CHECK(cudaStreamEndCapture(cuda::handle_of(stream), &recorded));
    const std::unique_ptr<CUgraph_st, GraphDeleter> owner(recorded);
    cudaGraphExec_t graph = nullptr;
    SLUICE_CUDA_CHECK(cudaGraphInstantiateWithFlags(&graph, recorded, 0));
    const std::lock_guard lock(mutex_);
    graphs_.emplace_back(graph);
    return {reinterpret_cast<std::uint64_t>(graph)};
  }
  void abandon_capture(Stream stream) noexcept override {
    cudaSetDevice(index_);
    cudaGraph_t recorded = nullptr;
    cudaStreamEndCapture(device_queue_of(stream).handle, &recorded);
    if (recorded != nullptr) cudaGraphDestroy(recorded);
    cudaGetLastError();  // the first fault is reported, not that of the capture
  }
  void launch(Graph graph, Stream stream) override {
    ++queue_of(stream).launches;
    SLUICE_CUDA_CHECK(cudaGraphLaunch(handle_of(graph), cuda::handle_of(stream)));
  }
  void release(Graph graph) override {
    const std::lock_guard lock(mutex_);
    std::erase_if(graphs_, [&](const auto& each) { return each.get() == handle_of(graph); });
  }

  void copy_from_host(std::byte* to, const std::byte* from, std::size_t bytes,
                      Stream stream) override {
    // The driver copies small data along with the command; large data may still be being read.
    constexpr std::size_t taken_along = 64 << 10;
    pinned_.for_each_piece(from, bytes, [&](std::size_t at, std::size_t count) {
      copy(to + at, from + at, count, cudaMemcpyHostToDevice, stream);
      if ((count > taken_along || reads_host_tables_) && !is_pinned(from + at)) synchronize(stream);
    });
  }
  void copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes,
                    Stream stream) override {
    pinned_.for_each_piece(to, bytes, [&](std::size_t at, std::size_t count) {
      copy(to + at, from + at, count, cudaMemcpyDeviceToHost, stream);
      if (!is_pinned(to + at)) synchronize(stream);
    });
  }
  void copy_within(std::byte* to, const std::byte* from, std::size_t bytes,
                   Stream stream) override {
    copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  void fill_zero(std::byte* start, std::size_t bytes, Stream stream) override {
    if (bytes > 0) SLUICE_CUDA_CHECK(cudaMemsetAsync(start, 0, bytes, cuda::handle_of(stream)));
  }

 private:
  void select() const { SLUICE_CUDA_CHECK(cudaSetDevice(index_)); }
  std::size_t free_memory() const {
    select();
    std::size_t free = 0;
    std::size_t total = 0;
    SLUICE_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return free;
  }
  static void copy(std::byte* to, const std::byte* from, std::size_t bytes, cudaMemcpyKind kind,
                   Stream stream) {
    if (bytes > 0)
      SLUICE_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, kind, cuda::handle_of(stream)));
  }
  static bool is_pinned(const std::byte* address) {
    cudaPointerAttributes attributes{};
    SLUICE_CUDA_CHECK(cudaPointerGetAttributes(&attributes, address));
    return attributes.type == cudaMemoryTypeHost;
  }

  int index_;
  std::string name_, uuid_, code_;
  std::size_t memory_ = 0;
  int multiprocessors_ = 0;
  int capability_ = 0;
  std::size_t shared_limit_ = 0;
  std::size_t l2_bytes_ = 0;
  bool reads_host_tables_ = false;  ///< copies may read pageable host memory in place
  PinnedRanges pinned_;             ///< pinned by pin(), not by reserve_pinned()
  std::mutex mutex_;
  std::unique_ptr<GemmPlans> gemms_;
  std::vector<std::unique_ptr<DeviceQueue, QueueDeleter>> queues_;
  std::vector<std::unique_ptr<CUevent_st, EventDeleter>> events_;
  std::vector<std::unique_ptr<CUgraphExec_st, GraphExecDeleter>> graphs_;
  Stream compute_;
};

}  // namespace

std::byte* cuda::workspace(Stream stream, std::size_t bytes) {
  const Queue& queue = queue_of(stream);
  if (bytes > queue.workspace_bytes)
    fail("a kernel needs " + std::to_string(bytes) + " bytes of workspace, but the stream has " +
         std::to_string(queue.workspace_bytes) + "; lower --micro-batch");
  return queue.workspace;
}

CUstream_st* cuda::stream_handle(Stream stream) {
  return handle_of(stream);
}

int cuda_devices(std::string* why) {
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  if (status == cudaSuccess) status = cudaErrorNoDevice;
  cudaGetLastError();
  if (why != nullptr)
    *why = std::string("no CUDA device was found (") + cudaGetErrorString(status) + "); " +
           hint_for(status);
  return 0;
}

std::unique_ptr<Runtime> make_cuda_runtime(int index) {
  std::string why;
  const int count = cuda_devices(&why);
  if (count == 0) fail(why, ErrorKind::usage);
  if (index < 0 || index >= count)
    fail("there is no CUDA device " + std::to_string(index) + " among the " +
             std::to_string(count) + " of this machine; they are counted from 0",
         ErrorKind::usage);
  return std::make_unique<CudaRuntime>(index);
}

}  // namespace sluice
