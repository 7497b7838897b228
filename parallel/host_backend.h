#pragma once

#include <memory>

#include "parallel/backend.h"
#include "parallel/transport.h"

namespace sluice {

/// Collectives on host memory, made of a transport's messages. Reductions are ordered: every
/// element is the sum over ranks 0, 1, 2... in that order, 16-bit numbers added in f32 and rounded
/// once, so the result depends on neither timing nor transport, nor on how a reduction is cut into
/// several.
///
/// Volumes sent per rank, for n bytes on N ranks: reduce_scatter and all_gather (N-1)/N n by direct
/// exchange; all_reduce one of each, or (N-1) n in a single exchange where n is small; broadcast a
/// binomial tree; reduce, gather and scatter directly between the root and the others.
std::unique_ptr<Backend> make_host_backend(std::shared_ptr<Transport> transport);

/// Does nothing: for plans, in which a rank stands for all.
std::unique_ptr<Backend> make_idle_backend();

}  // namespace sluice
