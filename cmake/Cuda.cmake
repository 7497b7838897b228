# How the GPU kernels are compiled: settles SLUICE_CUDA to on, simt or off.
#   on    by nvcc; products by cuBLASLt. The programs start on a machine without a GPU driver.
#   simt  by the host compiler, for the emulated GPU of kernels/cuda/simt
#   off   not at all
#   auto  on where nvcc and cuBLASLt are and a GPU to compile for, otherwise off
# The GPUs to compile for are those of SLUICE_CUDA_ARCHITECTURES; those of this machine where it is
# empty; every supported one where there is no GPU and SLUICE_CUDA is on.

if(NOT SLUICE_CUDA MATCHES "^(auto|on|off|simt)$")
  message(FATAL_ERROR "SLUICE_CUDA is '${SLUICE_CUDA}': give auto, on, off or simt")
endif()

# The compute capabilities of this machine's GPUs as "80-real;90-real"; empty without a GPU.
function(sluice_find_gpus result)
  set(found "")
  find_program(SLUICE_NVIDIA_SMI nvidia-smi)
  if(SLUICE_NVIDIA_SMI)
    execute_process(COMMAND ${SLUICE_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE lines RESULT_VARIABLE code ERROR_QUIET)
    if(code EQUAL 0)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" found "${lines}")
      list(REMOVE_DUPLICATES found)
      list(TRANSFORM found REPLACE "\\." "")
      list(TRANSFORM found APPEND "-real")
    endif()
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

find_package(CUDAToolkit QUIET)
set(cuda_note "CPU only")
set(architectures "${SLUICE_CUDA_ARCHITECTURES}")
if(NOT architectures AND SLUICE_CUDA MATCHES "^(auto|on)$")
  sluice_find_gpus(architectures)
endif()
if(NOT architectures AND SLUICE_CUDA STREQUAL "auto")
  if(CUDAToolkit_FOUND)
    set(cuda_note "CPU only: this machine has no GPU; -DSLUICE_CUDA=on compiles for other machines'")
  endif()
  set(SLUICE_CUDA off)
elseif(CUDAToolkit_FOUND AND CUDAToolkit_VERSION VERSION_LESS 12.0 AND SLUICE_CUDA MATCHES "^(auto|on)$")
  sluice_hint(hint CUDA)  # nvcc 11 has no C++20
  set(too_old "the CUDA toolkit is ${CUDAToolkit_VERSION}: 12.0 or newer is needed; ${hint}")
  if(SLUICE_CUDA STREQUAL "on")
    sluice_stop("${too_old}")
  endif()
  set(cuda_note "CPU only: ${too_old}")
  set(SLUICE_CUDA off)
elseif(NOT architectures)
  # Newer GPUs than these run the PTX of 90, which the driver compiles at the first start.
  set(architectures "75-real;80-real;86-real;89-real;90")
  if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND architectures "100-real" "120-real")
  endif()
endif()
if(SLUICE_CUDA MATCHES "^(auto|on)$")
  # Where NVIDIA's packages put nvcc it is not on the PATH.
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(SLUICE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
                 PATH_SUFFIXES bin)
    if(SLUICE_NVCC)
      set(ENV{CUDACXX} ${SLUICE_NVCC})  # so that check_language tries it
    endif()
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${architectures})
  if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER)
    set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cudart_static AND TARGET CUDA::cublasLt)
    set(SLUICE_CUDA on)
  elseif(SLUICE_CUDA STREQUAL "on")
    sluice_hint(hint CUDA)
    sluice_stop("SLUICE_CUDA=on needs nvcc that works, the static CUDA runtime and cuBLASLt; ${hint}, or give the path of nvcc in CMAKE_CUDA_COMPILER")
  else()
    if(CUDAToolkit_FOUND)
      set(cuda_note "CPU only: of the CUDA toolkit ${CUDAToolkit_VERSION} nvcc or a library is missing")
    endif()
    set(SLUICE_CUDA off)
  endif()
endif()

if(SLUICE_CUDA STREQUAL "on")
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
  enable_language(CUDA)
  # CMake 3.25 knows no C++20 for the nvcc of CUDA 13 unless it is told the flag.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)

  # "75 80 86 89 90" of "75-real;80-real;...".
  string(REGEX REPLACE "-(real|virtual)" "" SLUICE_CUDA_CAPABILITIES "${architectures}")
  string(REPLACE ";" " " SLUICE_CUDA_CAPABILITIES "${SLUICE_CUDA_CAPABILITIES}")

  # What a target with .cu files links to.
  add_library(sluice_cuda INTERFACE)
  target_link_libraries(sluice_cuda INTERFACE CUDA::cudart_static CUDA::cublasLt)
  # The kernels share constexpr functions with the host. Line numbers, for compute-sanitizer and
  # profilers, make kernels four times as large; compression more than undoes that. What the host
  # compiler gets of a .cu file has to pass the same warnings as C++.
  target_compile_options(sluice_cuda INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--expt-relaxed-constexpr -Werror all-warnings>"
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-lineinfo -Xfatbin=-compress-all>"
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow,-Werror>"
    "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:$<$<CXX_COMPILER_ID:GNU>:-Xcompiler=-Wno-restrict>>")
  sluice_report(CUDA yes "${CMAKE_CUDA_COMPILER_VERSION} (${SLUICE_CUDA_CAPABILITIES})")
elseif(SLUICE_CUDA STREQUAL "simt")
  sluice_report(CUDA simt "the CUDA kernels run on the host")
else()
  sluice_report(CUDA no "${cuda_note}")
endif()

# cuDNN is only measured against: bench_kernels is compiled with its headers and opens it when run.
set(SLUICE_CUDNN OFF)
if(CUDAToolkit_FOUND)
  find_library(SLUICE_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
  find_path(SLUICE_CUDNN_INCLUDE_DIR cudnn_version.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
endif()
set(cudnn_version "")
if(SLUICE_CUDNN_INCLUDE_DIR)
  file(STRINGS ${SLUICE_CUDNN_INCLUDE_DIR}/cudnn_version.h lines
       REGEX "^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) +[0-9]+")
  string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
  string(REPLACE ";" "." cudnn_version "${numbers}")
endif()
if(NOT SLUICE_CUDNN_LIBRARY)
  sluice_report(CUDNN no "")
elseif(SLUICE_CUDA STREQUAL "on" AND cudnn_version MATCHES "^9\\.")
  set(SLUICE_CUDNN ON)
  sluice_report(CUDNN yes "${cudnn_version} (baseline rows of bench_kernels)")
elseif(SLUICE_CUDA STREQUAL "on")
  sluice_report(CUDNN found "not used: bench_kernels needs the headers of version 9")
else()
  sluice_report(CUDNN found "not used without CUDA")
endif()

# NCCL is opened when ranks first need it, so programs start without it; only its header matters here.
set(SLUICE_NCCL OFF)
if(CUDAToolkit_FOUND AND NOT SLUICE_CUDA STREQUAL "simt")
  find_path(SLUICE_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
endif()
if(SLUICE_CUDA STREQUAL "simt")
  set(SLUICE_NCCL ON)
  set(SLUICE_NCCL_INCLUDE_DIR ${PROJECT_SOURCE_DIR}/kernels/cuda/simt/nccl)
  sluice_report(NCCL simt "the tests have a library that stands in for it")
elseif(NOT SLUICE_NCCL_INCLUDE_DIR)
  sluice_report(NCCL no "")
elseif(SLUICE_CUDA STREQUAL "on")
  set(SLUICE_NCCL ON)
  sluice_report(NCCL yes "loaded at run time")
else()
  sluice_report(NCCL found "not used without CUDA")
endif()
