#include "kernels/adafactor.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/master_weight.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t tile = AdafactorBlocks::tile;

/// The matrix in blocks, with the place of their sums in scratch memory.
struct Plan : AdafactorBlocks {
  double* scratch;

  struct Block {
    std::int64_t index, tile, split;
    std::int64_t column, columns;  ///< first column and number of columns
    std::int64_t first_row, end_row;
  };
  template <class Body>
  void each_block(Body&& body) const {
    parallel_for(blocks(), [&](std::int64_t index) {
      const std::int64_t t = index % tiles(), split = index / tiles();
      body(Block{.index = index,
                 .tile = t,
                 .split = split,
                 .column = t * tile,
                 .columns = std::min(tile, columns - t * tile),
                 .first_row = split * rows_per_split(),
                 .end_row = std::min(rows, (split + 1) * rows_per_split())});
    });
  }
};

/// Inputs of an update besides the weights, in the master's type.
template <class A, class G>
struct Gradients {
  const G* grad;
  A scale;
  const A* row_moment;  ///< null: a vector
  const A* column_moment;
  A mean{};  ///< mean of the row moments

  A row_root(std::int64_t row) const {
    return row_moment != nullptr ? std::sqrt(row_moment[row] / mean) : A(1);
  }
};

/// One pass over the gradients: sums of their squares along rows and down columns.
template <class A, class G>
void add_squares(const Plan& plan, const Gradients<A, G>& in) {
  plan.each_block([&](const Plan::Block& block) {
    double down[tile] = {};
    for (std::int64_t row = block.first_row; row < block.end_row; ++row) {
      const G* grad = in.grad + row * plan.columns + block.column;
      double along = 0;
#pragma omp simd reduction(+ : along)
      for (std::int64_t j = 0; j < block.columns; ++j) {
        const auto g = static_cast<double>(static_cast<A>(grad[j]) * in.scale);
        down[j] += g * g;
        along += g * g;
      }
      plan.scratch[plan.row_squares() + block.tile * plan.rows + row] = along;
    }
    std::copy_n(down, block.columns,
                plan.scratch + plan.column_squares() + block.split * plan.columns + block.column);
  });
}

/// Moves the moments of rows or columns towards the means of squares over `length` elements; `sums`
/// are [parts, count]. If `totals` is given, stores the sums of groups of moments there.
template <class A>
void move_moments(const Adafactor& op, A* moments, const double* sums, std::int64_t parts,
                  std::int64_t count, std::int64_t length, double* totals) {
  const A beta2 = static_cast<A>(op.beta2), rest = static_cast<A>(1 - op.beta2);
  const A epsilon = static_cast<A>(op.epsilon1);
  constexpr std::int64_t grain = AdafactorBlocks::moments_sum;
  parallel_ranges(count, grain, [=](std::int64_t begin, std::int64_t end) {
    double total = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      double sum = 0;
      for (std::int64_t part = 0; part < parts; ++part)
        sum += sums[part * count + i];
      const A mean = static_cast<A>(sum / static_cast<double>(length)) + epsilon;
      moments[i] = beta2 * moments[i] + rest * mean;
      total += static_cast<double>(moments[i]);
    }
    if (totals != nullptr) totals[begin / grain] = total;
  });
}

template <class Master>
void add_weight_squares(const Plan& plan, const Master& weights) {
  plan.each_block([&](const Plan::Block& block) {
    double sum = 0;
    for (std::int64_t row = block.first_row; row < block.end_row; ++row) {
      const auto line = weights.from(row * plan.columns + block.column);
#pragma omp simd reduction(+ : sum)
      for (std::int64_t j = 0; j < block.columns; ++j) {
        const auto w = static_cast<double>(line.load(j));
        sum += w * w;
      }
    }
    plan.scratch[plan.weight_squares() + block.index] = sum;
  });
}

template <class A, class G>
void add_update_squares(const Plan& plan, const Gradients<A, G>& in) {
  plan.each_block([&](const Plan::Block& block) {
    A column_root[tile];
    for (std::int64_t j = 0; j < block.columns; ++j)
      column_root[j] = std::sqrt(in.column_moment[block.column + j]);
    double sum = 0;
    for (std::int64_t row = block.first_row; row < block.end_row; ++row) {
      const G* grad = in.grad + row * plan.columns + block.column;
      const A row_root = in.row_root(row);
#pragma omp simd reduction(+ : sum)
      for (std::int64_t j = 0; j < block.columns; ++j) {
        const auto u =
            static_cast<double>(static_cast<A>(grad[j]) * in.scale / (row_root * column_root[j]));
        sum += u * u;
      }
    }
    plan.scratch[plan.update_squares() + block.index] = sum;
  });
}

double root_mean(const Plan& plan, std::int64_t sums) {
  double sum = 0;
  for (std::int64_t i = 0; i < plan.blocks(); ++i)
    sum += plan.scratch[sums + i];
  return std::sqrt(sum / static_cast<double>(plan.rows * plan.columns));
}

/// The factor by which updates are multiplied: learning rate, weights' size, and clipping.
double factor_of(const Adafactor& op, const Plan& plan) {
  double factor = op.rate;
  if (op.scale_by_weights) factor *= std::max(op.epsilon2, root_mean(plan, plan.weight_squares()));
  return factor / std::max(1.0, root_mean(plan, plan.update_squares()) / op.clip);
}

template <class A, class G, class Master>
void apply(const Plan& plan, const Gradients<A, G>& in, const Master& weights, A keep, A factor) {
  plan.each_block([&](const Plan::Block& block) {
    A column_root[tile];
    for (std::int64_t j = 0; j < block.columns; ++j)
      column_root[j] = std::sqrt(in.column_moment[block.column + j]);
    for (std::int64_t row = block.first_row; row < block.end_row; ++row) {
      const std::int64_t at = row * plan.columns + block.column;
      const G* grad = in.grad + at;
      const auto line = weights.from(at);
      const A row_root = in.row_root(row);
      // Uses one quotient: with two products, the compiler could choose which one to fuse.
#pragma omp simd
      for (std::int64_t j = 0; j < block.columns; ++j)
        line.store(j, line.load(j) * keep -
                          factor * static_cast<A>(grad[j]) / (row_root * column_root[j]));
    }
  });
}

template <class A, class G, class Master>
void update(const Adafactor& op, const Master& weights) {
  const A scale = op.gradient_scale ? *op.gradient_scale.data<A>() : A(1);
  if (!std::isfinite(scale)) return;
  const Plan plan{op.blocks(), op.scratch.data<double>()};
  check(plan.rows * plan.columns == op.grad.size() && op.scratch.size() >= plan.size(),
        "Adafactor's moments and scratch belong to a matrix of another shape");
  A* rows = op.row_moment ? op.row_moment.data<A>() : nullptr;
  A* columns = op.column_moment.data<A>();
  Gradients<A, G> in{
      .grad = op.grad.data<G>(), .scale = scale, .row_moment = rows, .column_moment = columns};
  add_squares(plan, in);
  move_moments(op, columns, plan.scratch + plan.column_squares(), plan.splits(), plan.columns,
               plan.rows, nullptr);
  if (rows != nullptr) {
    double* totals = plan.scratch + plan.moment_sums();
    move_moments(op, rows, plan.scratch + plan.row_squares(), plan.tiles(), plan.rows, plan.columns,
                 totals);
    double sum = 0;
    for (std::int64_t i = 0; i < plan.moments_sums(); ++i)
      sum += totals[i];
    in.mean = static_cast<A>(sum / static_cast<double>(plan.rows));
  }
  if (op.scale_by_weights) add_weight_squares(plan, weights);
  add_update_squares(plan, in);
  const double factor = plan.scratch[plan.factor()] = factor_of(op, plan);
  apply(plan, in, weights, static_cast<A>(1 - op.rate * op.weight_decay),
        static_cast<A>(factor) * scale);
}

}  // namespace

void launch_cpu(const Adafactor& op) {
  const bool narrow = op.grad.dtype == DType::bf16;
  if (op.remainder) {
    const HalvedMaster weights{.working = op.working.data<BFloat16>(),
                               .remainder = op.remainder.data<std::int16_t>()};
    return narrow ? update<float, BFloat16>(op, weights) : update<float, float>(op, weights);
  }
  dispatch_master(op.master.dtype, op.working, [&]<class A, class W>() {
    const WholeMaster<A, W> weights{.master = op.master.data<A>(),
                                    .working = op.working ? op.working.data<W>() : nullptr};
    if constexpr (std::is_same_v<W, BFloat16>)
      if (narrow) return update<A, BFloat16>(op, weights);
    update<A, A>(op, weights);
  });
}

}  // namespace sluice
