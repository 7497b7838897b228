#include "engine/ops/gather_key_value.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/copy_columns.h"

namespace sluice {
namespace {

/// The places of columns. A part is [rows, 2 * width]: a rank's columns of k, then those of v.
struct Parts {
  std::int64_t rows, query, head_width, width;
  int sharers;
  TensorGroup* group;

  Shape shape() const { return {rows, 2 * width}; }
  /// A part among those of all ranks; `sharer` counts those of this rank's head.
  Tensor part(const Tensor& all, int sharer) const {
    const int rank = group->rank() / sharers * sharers + sharer;
    return all.slice(rank * rows * 2 * width, shape());
  }
  /// Calls body(sharer, first column in the part, first column in the row) for k and for v.
  template <class Body>
  void for_each(Body&& body) const {
    for (int sharer = 0; sharer < sharers; ++sharer) {
      body(sharer, std::int64_t{0}, query + sharer * width);
      body(sharer, width, query + head_width + sharer * width);
    }
  }
};

void copy(const Tensor& out, std::int64_t out_first, const Tensor& in, std::int64_t in_first,
          std::int64_t columns) {
  run(CopyColumns{.out = out.view(),
                  .in = in.view(),
                  .out_first = out_first,
                  .in_first = in_first,
                  .columns = columns},
      in.stream());
}

class GatherKeyValueNode final : public Node {
 public:
  GatherKeyValueNode(const Parts& parts, Shape shape) : parts_(parts), shape_(std::move(shape)) {}

  std::string_view name() const override { return "gather_key_value"; }
  std::vector<SavedTensor> saved() const override { return {}; }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const Tensor& grad = grad_outputs[0];
    Tensor grad_in = Tensor::empty(grad.device(), shape_, grad.dtype());
    const Tensor mine = summed(grad);
    copy(grad_in, 0, grad, 0, parts_.query);
    copy(grad_in, parts_.query, mine, 0, 2 * parts_.width);
    pass.give(0, grad_in);
  }

 private:
  /// This rank's part of the gradients of k and v, of all query heads that attend to them.
  Tensor summed(const Tensor& grad) const {
    const int ranks = parts_.group->size();
    Tensor all =
        Tensor::zeros(grad.device(), {ranks * parts_.rows, 2 * parts_.width}, grad.dtype());
    parts_.for_each([&](int sharer, std::int64_t of_part, std::int64_t of_row) {
      copy(parts_.part(all, sharer), of_part, grad, of_row, parts_.width);
    });
    return parts_.group->all_reduce(std::exchange(all, {}), {ranks, parts_.rows},
                                    "key and value gradient")();
  }

  Parts parts_;
  Shape shape_;
};

}  // namespace

Tensor gather_key_value(const Tensor& qkv, std::int64_t head_width, int sharers,
                        TensorGroup& group) {
  if (sharers < 1 || group.size() % sharers != 0 || head_width % sharers != 0 ||
      qkv.dim(-1) < 2 * head_width / sharers)
    fail(
        fmt::format("gather_key_value: {} ranks, of which {} share a head {} wide, cannot divide "
                    "it with an input of shape {}",
                    group.size(), sharers, head_width, to_string(qkv.shape())));
  const std::int64_t width = head_width / sharers;
  const Parts parts{.rows = qkv.size() / qkv.dim(-1),
                    .query = qkv.dim(-1) - 2 * width,
                    .head_width = head_width,
                    .width = width,
                    .sharers = sharers,
                    .group = &group};
  Tensor all;
  {
    const Tensor mine = Tensor::empty(qkv.device(), parts.shape(), qkv.dtype());
    copy(mine, 0, qkv, parts.query, 2 * width);
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), mine.size());
    all = group.gather(mine, counts, "key and value");
  }
  Shape shape = qkv.shape();
  shape.back() = parts.query + 2 * head_width;
  Tensor out = Tensor::empty(qkv.device(), shape, qkv.dtype());
  copy(out, 0, qkv, 0, parts.query);
  parts.for_each([&](int sharer, std::int64_t of_part, std::int64_t of_row) {
    copy(out, of_row, parts.part(all, sharer), of_part, width);
  });
  if (recording({qkv}))
    attach(std::make_shared<GatherKeyValueNode>(parts, qkv.shape()), {qkv}, out);
  return out;
}

}  // namespace sluice
