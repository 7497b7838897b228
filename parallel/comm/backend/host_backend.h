#pragma once

#include <memory>

#include "parallel/comm/backend/backend.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

/// Makes a backend for host memory, built from a transport's messages. Reductions are ordered:
/// every element is the sum over ranks 0, 1, 2... in that order, with 16-bit numbers added in f32
/// and rounded once. So the result depends neither on timing, nor on the transport, nor on how a
/// reduction is cut into several.
///
/// Bytes that each rank sends, for n bytes on N ranks: reduce_scatter and all_gather (N-1)/N n, by
/// direct exchange; all_reduce twice that, or for small n (N-1) n in a single exchange. Broadcast
/// is a binomial tree. Reduce, gather and scatter go directly between the root and the others.
std::unique_ptr<Backend> make_host_backend(std::shared_ptr<Transport> transport);

/// Makes a backend that does nothing, for memory plans, in which one rank stands for all.
std::unique_ptr<Backend> make_idle_backend();

}  // namespace sluice
