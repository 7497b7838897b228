#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/run.h"
#include "tests/support/gpu/cuda_device.h"

// The common test of CUDA kernels: a kernel computes what the CPU kernel computes, writes nothing
// else, and gives the same bits in whatever order its threads run.

namespace sluice::test {

/// An array that an op reads or writes.
struct Argument {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape{};
  Values values{};                 ///< initial values; empty: all NaN, and must be written
  bool written = false;            ///< otherwise it must not change
  std::optional<double> bound{};   ///< on the relative l2 error; by default tolerance_of(dtype)
  std::optional<DType> read_as{};  ///< the type of the result, if not `dtype`
  std::int64_t stride = 0;         ///< of rows of which only `columns` are written; 0: all
  std::int64_t columns = 0;
};

/// Collects the arguments of an op, then runs it on the CPU and on every device and compares.
class Parity {
 public:
  /// The start of the arguments, in elements past an aligned address.
  struct Offsets {
    std::int64_t read = 0;
    std::int64_t written = 0;
  };
  /// Identifies an argument that was added.
  struct Id {
    std::size_t index;
  };
  class Views {
   public:
    explicit Views(std::vector<View> views) : views_(std::move(views)) {}
    const View& operator[](Id id) const { return views_.at(id.index); }

   private:
    std::vector<View> views_;
  };
  /// Starts the op, for example with run(op, stream).
  using Body = std::function<void(const Views&, Stream)>;

  explicit Parity(const CudaDevices& devices) : devices_(devices) {}
  /// For ops whose arguments may begin anywhere: with no offsets, compare() also runs with each
  /// argument in turn an element past an aligned address and all others aligned, unless they are
  /// large.
  Parity(const CudaDevices& devices, Offsets offsets)
      : devices_(devices), offsets_(offsets), anywhere_(true) {}

  Id add(Argument argument);
  Id input(std::string name, DType dtype, std::vector<std::int64_t> shape, Values values);
  /// Adds values uniform in [-scale, scale), different for every argument.
  Id input(std::string name, DType dtype, std::vector<std::int64_t> shape, double scale = 1);
  Id output(std::string name, DType dtype, std::vector<std::int64_t> shape,
            std::optional<double> bound = {});
  /// Adds an argument that is read and written.
  Id state(std::string name, DType dtype, std::vector<std::int64_t> shape, Values values,
           std::optional<double> bound = {});

  /// Fails the test case, with argument names, if a device differs from the CPU.
  void compare(const Body& body) const;

 private:
  using Bytes = std::vector<std::byte>;

  std::vector<Bytes> start() const;
  std::vector<Bytes> run_cpu(std::vector<Bytes> memory, const Body& body) const;
  /// `alone`: the argument that is an element past an aligned address.
  std::vector<Bytes> run_device(CudaDevice& device, const std::vector<Bytes>& before,
                                const Body& body, std::optional<std::size_t> alone = {}) const;
  void compare_alone(const std::vector<Bytes>& before, const std::vector<Bytes>& expected,
                     const Body& body) const;
  void compare(const Argument& argument, const Bytes& before, const Bytes& expected,
               const Bytes& actual) const;

  const CudaDevices& devices_;
  Offsets offsets_{};
  bool anywhere_ = false;
  std::vector<Argument> arguments_;
};

/// All combinations of aligned and unaligned inputs and outputs, for ops with vectorized access.
constexpr Parity::Offsets all_offsets[] = {{0, 0}, {1, 1}, {0, 1}, {1, 0}};

/// The types that the CUDA kernels compute in.
constexpr DType cuda_dtypes[] = {DType::f32, DType::bf16, DType::f16};

}  // namespace sluice::test
