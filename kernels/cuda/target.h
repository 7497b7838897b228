#pragma once

// The API that kernels use: CUDA itself, or its emulation on the host (SLUICE_CUDA=simt).
#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "kernels/cuda/simt/builtins.h"
#endif
