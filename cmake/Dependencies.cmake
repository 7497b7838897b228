# Finds everything the project can use but CUDA (see Cuda.cmake) and notes it for one table. Required
# libraries stop the configuration with the Debian package to install; optional ones only change
# what is built.

set(SLUICE_FOUND_TABLE "")
function(sluice_report name state note)
  string(LENGTH "${name}" length)
  math(EXPR padding "16 - ${length}")
  string(REPEAT " " ${padding} spaces)
  set(SLUICE_FOUND_TABLE "${SLUICE_FOUND_TABLE}\n  ${name}${spaces}${state}  ${note}" PARENT_SCOPE)
endfunction()

macro(sluice_require package target debian)
  find_package(${package} QUIET)
  if(NOT TARGET ${target})
    message(FATAL_ERROR "${package} was not found. On Debian: apt-get install ${debian} "
                        "(scripts/quickstart installs everything)")
  endif()
  sluice_report(${package} yes "${${package}_VERSION}")
endmacro()

sluice_require(fmt fmt::fmt libfmt-dev)
sluice_require(CLI11 CLI11::CLI11 libcli11-dev)
sluice_require(nlohmann_json nlohmann_json::nlohmann_json nlohmann-json3-dev)
sluice_require(ZLIB ZLIB::ZLIB zlib1g-dev)
find_package(Threads REQUIRED)

# Libraries without a package description for CMake, as targets sluice_<name>.
macro(sluice_require_library name header library debian)
  string(TOUPPER ${name} upper)
  find_path(${upper}_INCLUDE ${header})
  find_library(${upper}_LIBRARY ${library})
  if(NOT ${upper}_INCLUDE OR NOT ${upper}_LIBRARY)
    message(FATAL_ERROR "${name} was not found. On Debian: apt-get install ${debian}")
  endif()
  add_library(sluice_${name} INTERFACE)
  target_include_directories(sluice_${name} SYSTEM INTERFACE
                             $<BUILD_INTERFACE:${${upper}_INCLUDE}>)
  target_link_libraries(sluice_${name} INTERFACE ${${upper}_LIBRARY})
  sluice_report(${name} yes "")
endmacro()

sluice_require_library(pcre2 pcre2.h pcre2-8 libpcre2-dev)
sluice_require_library(utf8proc utf8proc.h utf8proc libutf8proc-dev)

# Not by find_package: Debian's dnnl package description insists on OpenCL, which its CPU library
# does not need. Its threads are OpenMP's, which has to be asked for one thread a product: the
# kernels have threads of their own.
if(SLUICE_ONEDNN)
  find_package(OpenMP QUIET COMPONENTS CXX)
  find_path(DNNL_INCLUDE oneapi/dnnl/dnnl.hpp)
  find_library(DNNL_LIBRARY dnnl)
endif()
if(DNNL_INCLUDE AND DNNL_LIBRARY AND TARGET OpenMP::OpenMP_CXX)
  add_library(sluice_onednn INTERFACE)
  target_include_directories(sluice_onednn SYSTEM INTERFACE $<BUILD_INTERFACE:${DNNL_INCLUDE}>)
  target_link_libraries(sluice_onednn INTERFACE ${DNNL_LIBRARY} OpenMP::OpenMP_CXX)
  sluice_report(oneDNN yes "${DNNL_LIBRARY}")
else()
  sluice_report(oneDNN no "CPU matrix products use plain loops (slow): libdnnl-dev")
endif()

# MPI's C interface alone: its C++ bindings are gone from the standard.
if(SLUICE_MPI)
  enable_language(C)
  find_package(MPI QUIET COMPONENTS C)
endif()
if(TARGET MPI::MPI_C)
  sluice_report(MPI yes "${MPI_C_VERSION} (${MPI_C_COMPILER})")
else()
  sluice_report(MPI no "one process only: libopenmpi-dev openmpi-bin")
endif()
