#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "bench/kernels/cudnn_library.h"

namespace sluice::bench {

/// A descriptor of cuDNN's graph interface; the destructor destroys it.
class CudnnDescriptor {
 public:
  /// `name` is used in errors.
  CudnnDescriptor(cudnnBackendDescriptorType_t type, const char* name);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;

  void set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
           std::int64_t count, const void* values);
  template <class T>
  void set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, T value) {
    set(attribute, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t attribute, const CudnnDescriptor& other) {
    set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, other.get());
  }
  void finalize();

  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  const char* name_;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// One cuDNN operation with the first engine that cuDNN proposes for the shapes and that runs here.
class CudnnPlan {
 public:
  /// An operand of an operation, as a matrix. A single element is passed by value, from the host.
  struct Tensor {
    cudnnBackendAttributeName_t attribute;
    DType dtype;
    std::int64_t rows;
    std::int64_t columns;
    const float* value = nullptr;
  };

  /// `operation` must be complete except for its tensors.
  CudnnPlan(CudnnDescriptor operation, const std::vector<Tensor>& tensors, Stream stream);

  /// Takes the addresses in the order of the tensors, without those passed by value.
  void launch(const std::vector<void*>& addresses, Stream stream);

 private:
  void add(const Tensor& tensor);
  /// Tries the engines that a heuristic proposes; returns true if a plan was made.
  bool choose(cudnnBackendHeurMode_t mode, Stream stream);
  bool make_plan(const CudnnDescriptor& configuration, Stream stream);
  const CudnnDescriptor& arguments(const std::vector<void*>& addresses, Stream stream);

  std::vector<CudnnDescriptor> tensors_;
  std::vector<const float*> values_;  ///< null: the tensor takes the next address
  CudnnDescriptor operation_, graph_;
  std::unique_ptr<CudnnDescriptor> configuration_, plan_;
  std::size_t workspace_bytes_ = 0;
  cudnnStatus_t refusal_ = CUDNN_STATUS_NOT_SUPPORTED;  ///< status of the last engine tried
  std::map<std::vector<void*>, CudnnDescriptor> arguments_;
};

/// LayerNorm of [rows, width] for training, with parameters in f32.
/// Addresses: in, weight, bias, out, mean, rstd.
std::unique_ptr<CudnnPlan> cudnn_layernorm(std::int64_t rows, std::int64_t width, DType dtype,
                                           Stream stream);
/// Addresses: grad_out, in, weight, mean, rstd, grad_in, grad_weight, grad_bias.
std::unique_ptr<CudnnPlan> cudnn_layernorm_backward(std::int64_t rows, std::int64_t width,
                                                    DType dtype, Stream stream);

}  // namespace sluice::bench
