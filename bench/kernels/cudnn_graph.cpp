#include "bench/kernels/cudnn_graph.h"

#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/cuda/queue.h"

namespace sluice::bench {
namespace {

constexpr std::int64_t alignment = 16;
/// Same as in the project's LayerNorm. Static, because plans read it when they run.
constexpr float epsilon = 1e-5f;

}  // namespace

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type, const char* name)
    : name_(name) {
  check_cudnn(cudnn().cudnnBackendCreateDescriptor(type, &descriptor_),
              std::string("cudnnBackendCreateDescriptor (") + name_ + ")");
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) cudnn().cudnnBackendDestroyDescriptor(descriptor_);
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : name_(other.name_), descriptor_(std::exchange(other.descriptor_, nullptr)) {}

void CudnnDescriptor::set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
                          std::int64_t count, const void* values) {
  check_cudnn(cudnn().cudnnBackendSetAttribute(descriptor_, attribute, type, count, values),
              std::string("cudnnBackendSetAttribute (") + name_ + ", attribute " +
                  std::to_string(static_cast<int>(attribute)) + ")");
}

void CudnnDescriptor::finalize() {
  check_cudnn(cudnn().cudnnBackendFinalize(descriptor_),
              std::string("cudnnBackendFinalize (") + name_ + ")");
}

CudnnPlan::CudnnPlan(CudnnDescriptor operation, const std::vector<Tensor>& tensors, Stream stream)
    : operation_(std::move(operation)),
      graph_(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph") {
  for (const Tensor& tensor : tensors)
    add(tensor);
  operation_.finalize();
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, cudnn_handle(stream));
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation_);
  graph_.finalize();
  if (!choose(CUDNN_HEUR_MODE_A, stream) && !choose(CUDNN_HEUR_MODE_FALLBACK, stream))
    check_cudnn(refusal_, "cudnnBackendFinalize (execution plan, of every engine proposed)");
}

void CudnnPlan::add(const Tensor& tensor) {
  CudnnDescriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
  const std::int64_t dimensions[] = {tensor.rows, tensor.columns, 1, 1};
  const std::int64_t strides[] = {tensor.columns, 1, tensor.columns, tensor.columns};
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, cudnn_type(tensor.dtype));
  made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dimensions);
  made.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
  made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment);
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64,
           static_cast<std::int64_t>(tensors_.size()) + 1);
  if (tensor.value != nullptr) made.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
  made.finalize();
  operation_.set(tensor.attribute, made);
  tensors_.push_back(std::move(made));
  values_.push_back(tensor.value);
}

bool CudnnPlan::choose(cudnnBackendHeurMode_t mode, Stream stream) {
  CudnnDescriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristic");
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  // A heuristic without an engine for the graph may fail here instead of proposing none.
  refusal_ = cudnn().cudnnBackendFinalize(heuristic.get());
  if (refusal_ != CUDNN_STATUS_SUCCESS) return false;
  refusal_ = CUDNN_STATUS_NOT_SUPPORTED;
  std::int64_t count = 0;
  SLUICE_CUDNN(cudnnBackendGetAttribute, heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
               CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr);
  std::vector<CudnnDescriptor> configurations;
  std::vector<cudnnBackendDescriptor_t> proposed;
  for (std::int64_t i = 0; i < count; ++i) {
    configurations.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration");
    proposed.push_back(configurations.back().get());
  }
  SLUICE_CUDNN(cudnnBackendGetAttribute, heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
               CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, proposed.data());
  while (static_cast<std::int64_t>(configurations.size()) > count)
    configurations.pop_back();
  for (CudnnDescriptor& configuration : configurations) {
    if (!make_plan(configuration, stream)) continue;
    configuration_ = std::make_unique<CudnnDescriptor>(std::move(configuration));
    return true;
  }
  return false;
}

bool CudnnPlan::make_plan(const CudnnDescriptor& configuration, Stream stream) {
  auto plan =
      std::make_unique<CudnnDescriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "execution plan");
  plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, cudnn_handle(stream));
  plan->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
  const cudnnStatus_t status = cudnn().cudnnBackendFinalize(plan->get());
  if (status != CUDNN_STATUS_SUCCESS) {
    refusal_ = status;
    return false;
  }
  std::int64_t bytes = 0, count = 0;
  SLUICE_CUDNN(cudnnBackendGetAttribute, plan->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
               CUDNN_TYPE_INT64, 1, &count, &bytes);
  if (static_cast<std::size_t>(bytes) > cuda::queue_of(stream).workspace_bytes) return false;
  workspace_bytes_ = static_cast<std::size_t>(bytes);
  plan_ = std::move(plan);
  return true;
}

const CudnnDescriptor& CudnnPlan::arguments(const std::vector<void*>& addresses, Stream stream) {
  // Kept for the next launch: making them takes the host longer than a small kernel takes the GPU.
  if (const auto made = arguments_.find(addresses); made != arguments_.end()) return made->second;
  std::vector<void*> pointers;
  std::vector<std::int64_t> identities;
  std::size_t next = 0;
  for (const float* value : values_) {
    pointers.push_back(value != nullptr ? const_cast<float*>(value) : addresses[next++]);
    identities.push_back(static_cast<std::int64_t>(pointers.size()));
  }
  const auto count = static_cast<std::int64_t>(pointers.size());
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "variant pack");
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, identities.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
           static_cast<void*>(cuda::workspace(stream, workspace_bytes_)));
  pack.finalize();
  return arguments_.emplace(addresses, std::move(pack)).first->second;
}

void CudnnPlan::launch(const std::vector<void*>& addresses, Stream stream) {
  const CudnnDescriptor& pack = arguments(addresses, stream);
  SLUICE_CUDNN(cudnnBackendExecute, cudnn_handle(stream), plan_->get(), pack.get());
}

std::unique_ptr<CudnnPlan> cudnn_layernorm(std::int64_t rows, std::int64_t width, DType dtype,
                                           Stream stream) {
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR, "LayerNorm");
  operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE, CUDNN_LAYER_NORM);
  operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE,
                CUDNN_NORM_FWD_TRAINING);
  return std::make_unique<CudnnPlan>(
      std::move(operation),
      std::vector<CudnnPlan::Tensor>{
          {CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, dtype, rows, width},
          {CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, DType::f32, 1, width},
          {CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC, DType::f32, 1, width},
          {CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, DType::f32, 1, 1, &epsilon},
          {CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, dtype, rows, width},
          {CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, DType::f32, rows, 1},
          {CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, DType::f32, rows, 1}},
      stream);
}

std::unique_ptr<CudnnPlan> cudnn_layernorm_backward(std::int64_t rows, std::int64_t width,
                                                    DType dtype, Stream stream) {
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR, "LayerNorm backward");
  operation.set(CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_TYPE_NORM_MODE, CUDNN_LAYER_NORM);
  return std::make_unique<CudnnPlan>(
      std::move(operation),
      std::vector<CudnnPlan::Tensor>{
          {CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, dtype, rows, width},
          {CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, dtype, rows, width},
          {CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, DType::f32, 1, width},
          {CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC, DType::f32, rows, 1},
          {CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, DType::f32, rows, 1},
          {CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, dtype, rows, width},
          {CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, DType::f32, 1, width},
          {CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, DType::f32, 1, width}},
      stream);
}

}  // namespace sluice::bench
