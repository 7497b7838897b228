#pragma once

// What a kernel is written against: CUDA itself, or its words on the host (SLUICE_CUDA=simt).
#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "kernels/cuda/simt/builtins.h"
#endif
