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

find_path(PCRE2_INCLUDE pcre2.h)
find_library(PCRE2_LIBRARY pcre2-8)
if(NOT PCRE2_INCLUDE OR NOT PCRE2_LIBRARY)
  message(FATAL_ERROR "PCRE2 was not found. On Debian: apt-get install libpcre2-dev")
endif()
add_library(sluice_pcre2 INTERFACE)
target_include_directories(sluice_pcre2 SYSTEM INTERFACE $<BUILD_INTERFACE:${PCRE2_INCLUDE}>)
target_link_libraries(sluice_pcre2 INTERFACE ${PCRE2_LIBRARY})
sluice_report(PCRE2 yes "")

find_path(UTF8PROC_INCLUDE utf8proc.h)
find_library(UTF8PROC_LIBRARY utf8proc)
if(NOT UTF8PROC_INCLUDE OR NOT UTF8PROC_LIBRARY)
  message(FATAL_ERROR "utf8proc was not found. On Debian: apt-get install libutf8proc-dev")
endif()
add_library(sluice_utf8proc INTERFACE)
target_include_directories(sluice_utf8proc SYSTEM INTERFACE $<BUILD_INTERFACE:${UTF8PROC_INCLUDE}>)
target_link_libraries(sluice_utf8proc INTERFACE ${UTF8PROC_LIBRARY})
sluice_report(utf8proc yes "")

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
  sluice_report(MPI yes "${MPI_C_VERSION}")
else()
  sluice_report(MPI no "one process only: libopenmpi-dev openmpi-bin")
endif()
