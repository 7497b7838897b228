// Ops that run once per step over the flat parameter space.

#include <fmt/format.h>

#include "bench/kernels/case.h"
#include "kernels/adamw.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "kernels/muon.h"
#include "kernels/reduce.h"
#include "kernels/sgd.h"

namespace sluice::bench {
namespace {

Operand flat(const Extent& e, DType dtype, Role role, Filling filling = Filling::normal) {
  return {.dtype = dtype, .shape = {e.parameters}, .role = role, .filling = filling};
}

/// The f64 kernels of the reference have no working weights, so a copy provides them.
bool has_working(DType dtype) {
  return dtype != DType::f32;
}
void derive_working(DType dtype, const View& working, const View& master, Stream stream) {
  if (dtype == DType::f64) run(Cast{.out = working, .in = master}, stream);
}

Problem adamw(const Extent& e, DType dtype) {
  const DType master = accumulator_of(dtype);
  Problem problem{.dimensions = fmt::format("{}", e.parameters),
                  .operands = {flat(e, master, Role::updated),
                               flat(e, master, Role::updated),
                               flat(e, master, Role::updated, Filling::positive),
                               flat(e, master, Role::input),
                               {.dtype = master, .shape = {1}, .filling = Filling::one}},
                  .launch = [dtype](const Operands& v, Stream stream) {
                    AdamW op{.master = v[0],
                             .first_moment = v[1],
                             .second_moment = v[2],
                             .grad = v[3],
                             .gradient_scale = v[4],
                             .rate = 1e-3,
                             .beta2 = 0.95,
                             .weight_decay = 0.1,
                             .correction1 = 0.9,
                             .correction2 = 0.95};
                    if (has_working(dtype) && dtype != DType::f64) op.working = v[5];
                    run(op, stream);
                    if (has_working(dtype)) derive_working(dtype, v[5], v[0], stream);
                  }};
  // The reference always has this operand; the f32 kernel does without it.
  if (has_working(dtype)) problem.operands.push_back(flat(e, dtype, Role::output));
  problem.bytes = bytes_of(problem.operands);
  return problem;
}

Problem sgd(const Extent& e, DType dtype) {
  const DType master = accumulator_of(dtype);
  Problem problem{.dimensions = fmt::format("{}", e.parameters),
                  .operands = {flat(e, master, Role::updated),
                               flat(e, master, Role::updated),
                               flat(e, master, Role::input),
                               {.dtype = master, .shape = {1}, .filling = Filling::one}},
                  .launch = [dtype](const Operands& v, Stream stream) {
                    Sgd op{.master = v[0],
                           .velocity = v[1],
                           .grad = v[2],
                           .gradient_scale = v[3],
                           .rate = 1e-3,
                           .momentum = 0.9,
                           .weight_decay = 0.1};
                    if (has_working(dtype) && dtype != DType::f64) op.working = v[4];
                    run(op, stream);
                    if (has_working(dtype)) derive_working(dtype, v[4], v[0], stream);
                  }};
  if (has_working(dtype)) problem.operands.push_back(flat(e, dtype, Role::output));
  problem.bytes = bytes_of(problem.operands);
  return problem;
}

Problem muon_momentum(const Extent& e, DType dtype) {
  const DType wide = accumulator_of(dtype);
  const std::vector<Operand> operands{flat(e, dtype, Role::output),
                                      flat(e, wide, Role::updated),
                                      flat(e, wide, Role::input),
                                      {.dtype = wide, .shape = {1}, .filling = Filling::one}};
  return {
      .dimensions = fmt::format("{}", e.parameters),
      .operands = operands,
      .launch =
          [](const Operands& v, Stream stream) {
            run(
                MuonMomentum{
                    .direction = v[0], .first_moment = v[1], .grad = v[2], .gradient_scale = v[3]},
                stream);
          },
      .bytes = bytes_of(operands)};
}

Problem muon_update(const Extent& e, DType dtype) {
  const DType master = accumulator_of(dtype);
  Problem problem{
      .dimensions = fmt::format("{}", e.parameters),
      .operands = {flat(e, master, Role::updated), flat(e, dtype, Role::input)},
      .launch = [dtype](const Operands& v, Stream stream) {
        MuonUpdate op{
            .master = v[0], .direction = v[1], .rate = 2e-2, .step = 3e-2, .weight_decay = 0.1};
        if (has_working(dtype) && dtype != DType::f64) op.working = v[2];
        run(op, stream);
        if (has_working(dtype)) derive_working(dtype, v[2], v[0], stream);
      }};
  if (has_working(dtype)) problem.operands.push_back(flat(e, dtype, Role::output));
  problem.bytes = bytes_of(problem.operands);
  return problem;
}

/// The sum b A + c A A of a Newton-Schulz step. Both are read up to the diagonal, half of each.
Problem symmetric_sum(const Extent& e, DType dtype) {
  const std::vector<Operand> operands{
      {.dtype = dtype, .shape = {e.width, e.width}, .role = Role::updated},
      {.dtype = dtype, .shape = {e.width, e.width}}};
  return {
      .dimensions = fmt::format("{0}x{0}", e.width),
      .operands = operands,
      .launch =
          [](const Operands& v, Stream stream) {
            run(SymmetricSum{.out = v[0], .added = v[1], .factor = 2.0315, .added_factor = -4.775},
                stream);
          },
      .bytes = 2 * static_cast<double>(operands[0].bytes())};
}

std::int64_t norm_blocks(const Extent& e) {
  return (e.parameters + SquaredNorm{}.block - 1) / SquaredNorm{}.block;
}

Problem squared_norm(const Extent& e, DType dtype) {
  const std::vector<Operand> operands{
      {.dtype = DType::f64, .shape = {norm_blocks(e)}, .role = Role::output},
      flat(e, dtype, Role::input)};
  return {.dimensions = fmt::format("{}", e.parameters),
          .operands = operands,
          .launch = [](const Operands& v,
                       Stream stream) { run(SquaredNorm{.partial = v[0], .in = v[1]}, stream); },
          .bytes = bytes_of(operands)};
}

Problem clip_factor(const Extent& e, DType dtype) {
  const std::vector<Operand> operands{
      {.dtype = DType::f64, .shape = {1}, .role = Role::output},
      {.dtype = dtype, .shape = {1}, .role = Role::output},
      {.dtype = DType::f64, .shape = {norm_blocks(e)}, .filling = Filling::positive}};
  return {.dimensions = fmt::format("{}", norm_blocks(e)),
          .operands = operands,
          .launch =
              [](const Operands& v, Stream stream) {
                run(ClipFactor{.norm = v[0], .factor = v[1], .partial = v[2], .limit = 1}, stream);
              },
          .bytes = bytes_of(operands)};
}

/// Sum of the losses of a micro-batch.
Problem sum(const Extent& e, DType dtype) {
  const std::vector<Operand> operands{
      {.dtype = dtype, .shape = {1}, .role = Role::output},
      {.dtype = dtype, .shape = {e.tokens}, .filling = Filling::positive}};
  return {
      .dimensions = fmt::format("{}", e.tokens),
      .operands = operands,
      .launch = [](const Operands& v, Stream stream) { run(Sum{.out = v[0], .in = v[1]}, stream); },
      .bytes = bytes_of(operands)};
}

}  // namespace

void add_update_cases(std::vector<Case>& cases) {
  cases.push_back({.op = "adamw",
                   .variant = "update",
                   .dtypes = model_dtypes(),
                   .make = adamw,
                   .goal = {.of_copy = 0.90}});
  cases.push_back({.op = "sgd", .variant = "update", .dtypes = model_dtypes(), .make = sgd});
  const std::vector<DType> of_muon{DType::f32, DType::bf16};
  cases.push_back(
      {.op = "muon_momentum", .variant = "update", .dtypes = of_muon, .make = muon_momentum});
  cases.push_back(
      {.op = "muon_update", .variant = "update", .dtypes = of_muon, .make = muon_update});
  cases.push_back(
      {.op = "symmetric_sum", .variant = "update", .dtypes = of_muon, .make = symmetric_sum});
  cases.push_back({.op = "squared_norm",
                   .variant = "forward",
                   .dtypes = {DType::f32},
                   .make = squared_norm,
                   .goal = {.of_copy = 0.88}});
  cases.push_back(
      {.op = "clip_factor", .variant = "forward", .dtypes = {DType::f32}, .make = clip_factor});
  cases.push_back({.op = "sum", .variant = "forward", .dtypes = {DType::f32}, .make = sum});
}

}  // namespace sluice::bench
