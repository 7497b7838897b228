#include "tests/nccl/kernel.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace sluice::nccl_standin {
namespace {

// The program that has loaded this library exports the emulated GPU.

using EnqueueWhen = void (*)(std::uint64_t, std::function<bool()>, std::function<void()>);
using DeviceOf = void* (*)(std::uint64_t);
using UseMemory = void (*)(void*, std::size_t);

template <class Function>
Function of_program(const char* name) {
  auto* const found = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) {
    std::fprintf(stderr,
                 "the tests' libnccl.so.2 is for programs of a build with SLUICE_CUDA=simt\n");
    std::abort();
  }
  return found;
}

void enqueue_when(cudaStream_t stream, std::function<bool()> ready, std::function<void()> work) {
  static const auto function = of_program<EnqueueWhen>("sluice_simt_enqueue_when");
  function(reinterpret_cast<std::uint64_t>(stream), std::move(ready), std::move(work));
}
void* device_of(cudaStream_t stream) {
  static const auto function = of_program<DeviceOf>("sluice_simt_device");
  return function(reinterpret_cast<std::uint64_t>(stream));
}

std::mutex mutex;
std::map<const void*, int> resident;  ///< kernels on each GPU

/// A kernel's place on a GPU. It ends with the kernel, or with the GPU's streams.
class Residence {
 public:
  explicit Residence(const void* device) : device_(device) {
    const std::lock_guard lock(mutex);
    ++resident[device_];
  }
  ~Residence() {
    const std::lock_guard lock(mutex);
    --resident[device_];
  }
  Residence(const Residence&) = delete;
  Residence& operator=(const Residence&) = delete;

 private:
  const void* device_;
};

Bytes text_of(const Operation& operation) {
  const std::string text = operation.text();
  return Bytes(text.begin(), text.end());
}

}  // namespace

std::string of_rank(const std::string& name, int rank) {
  return name + "." + std::to_string(rank);
}

void Kernel::start() {
  for (const Task& task : tasks_) {
    const Operation& operation = task.operation;
    if (operation.kind == Kind::send) shared_->place.leave(task.name, operation.input(1));
    if (operation.is_message()) continue;
    shared_->place.leave(of_rank("what-" + task.name, shared_->rank), text_of(operation));
    shared_->place.leave(of_rank(task.name, shared_->rank), operation.input(shared_->ranks));
  }
}

bool Kernel::ready() {
  bool all = true;
  for (Task& task : tasks_) {
    const Operation& operation = task.operation;
    if (operation.kind == Kind::receive)
      all = (task.received || receive(task)) && all;
    else if (operation.kind == Kind::send)
      all = !shared_->place.has(task.name) && all;  // the other rank takes it away
    else
      all = all_agree(task) && all;
  }
  return all;
}

void Kernel::end() {
  std::vector<std::string> left;
  for (const Task& task : tasks_) {
    const Operation& operation = task.operation;
    if (operation.kind == Kind::receive)
      std::memcpy(operation.out, task.received->data(), task.received->size());
    if (operation.kind == Kind::receive && wrong_) spoil(operation);
    if (operation.is_message()) continue;
    std::vector<Bytes> inputs;
    for (int peer = 0; peer < shared_->ranks; ++peer) {
      auto input = shared_->place.look(of_rank(task.name, peer));
      if (!input) return;  // a rank has given up and removed the folder
      inputs.push_back(std::move(*input));
    }
    finish(operation, shared_->rank, inputs);
    if (wrong_) spoil(operation);
    left.push_back(of_rank(task.name, shared_->rank));
    left.push_back(of_rank("what-" + task.name, shared_->rank));
  }
  if (left.empty()) return;
  // All ranks have come here, so all have read what was left before.
  for (const std::string& name : std::exchange(shared_->left, left))
    shared_->place.remove(name);
}

void Kernel::spoil(const Operation& operation) {
  *static_cast<std::uint8_t*>(operation.out) ^= 1;
}

bool Kernel::fail(const std::string& text) {
  if (shared_->failed) return false;
  shared_->error = text;
  shared_->failed = true;
  return false;
}

bool Kernel::receive(Task& task) {
  task.received = shared_->place.look(task.name);
  if (!task.received) return false;
  shared_->place.remove(task.name);
  return task.received->size() == task.operation.bytes() ||
         fail("a message of " + std::to_string(task.received->size()) +
              " bytes was sent, and one of " + std::to_string(task.operation.bytes()) +
              " is received");
}

bool Kernel::all_agree(const Task& task) {
  for (int peer = 0; peer < shared_->ranks; ++peer) {
    if (!shared_->place.has(of_rank(task.name, peer))) return false;
    const auto text = shared_->place.look(of_rank("what-" + task.name, peer));
    if (text && *text != text_of(task.operation))
      return fail("rank " + std::to_string(shared_->rank) + " called " + task.operation.text() +
                  ", and rank " + std::to_string(peer) + " " +
                  std::string(text->begin(), text->end()));
  }
  return true;
}

void DeviceMemory::take(cudaStream_t stream, std::size_t bytes) {
  device_ = device_of(stream);
  bytes_ += bytes;
  of_program<UseMemory>("sluice_simt_take_memory")(device_, bytes);
}

void DeviceMemory::give_back() {
  if (bytes_ == 0) return;
  of_program<UseMemory>("sluice_simt_give_back_memory")(device_, std::exchange(bytes_, 0));
}

void launch(const std::shared_ptr<Shared>& shared, std::vector<Task> tasks, cudaStream_t stream,
            int most, bool wrong) {
  const void* const device = device_of(stream);
  auto kernel = std::make_shared<Kernel>(shared, std::move(tasks), wrong);
  auto residence = std::make_shared<std::unique_ptr<Residence>>();
  ++shared->unfinished;
  enqueue_when(
      stream,
      [=] {
        const std::lock_guard lock(mutex);
        return shared->aborted || resident[device] < most;
      },
      [=] {
        if (shared->aborted) return;
        *residence = std::make_unique<Residence>(device);
        kernel->start();
      });
  enqueue_when(
      stream,
      [=] { return shared->aborted || !*residence || (!shared->failed && kernel->ready()); },
      [=] {
        residence->reset();
        if (!shared->aborted) kernel->end();
        --shared->unfinished;
      });
}

}  // namespace sluice::nccl_standin
