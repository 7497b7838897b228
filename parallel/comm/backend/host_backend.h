#pragma once

#include <memory>

#include "parallel/comm/backend/backend.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

/// Collectives on host memory, built from a transport's messages. Reductions are ordered: every
/// element is the sum over ranks 0, 1, 2... in that order, with 16-bit numbers added in f32 and
/// rounded once. So the result depends neither on timing, nor on the transport, nor on how a
/// reduction is cut into several.
///
/// Volumes sent per rank, for n bytes on N ranks: reduce_scatter and all_gather send (N-1)/N n by
/// direct exchange; all_reduce is one of each, or (N-1) n in a single exchange if n is small;
/// broadcast is a binomial tree; reduce, gather and scatter go directly between root and others.
std::unique_ptr<Backend> make_host_backend(std::shared_ptr<Transport> transport);

/// A backend that does nothing: for plans, in which one rank stands for all.
std::unique_ptr<Backend> make_idle_backend();

}  // namespace sluice
