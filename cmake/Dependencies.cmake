# Finds everything the project can use but CUDA (see Cuda.cmake) and notes it for one table. Required
# libraries stop the configuration with this system's package to install; optional ones only change
# what is built.

# In one line, which CMake does not break: "on Debian 13: apt-get install libfmt-dev", where needs are
# rows of the table of scripts/install_deps.
function(sluice_hint result)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/install_deps --hint ${ARGN}
                  OUTPUT_VARIABLE hint OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${result} "${hint}" PARENT_SCOPE)
endfunction()
function(sluice_stop sentence)
  message(FATAL_ERROR "\n  ${sentence}")  # CMake wraps a line that is not indented
endfunction()

set(SLUICE_FOUND_TABLE "")
function(sluice_report name state note)
  string(LENGTH "${name}" length)
  math(EXPR padding "16 - ${length}")
  string(REPEAT " " ${padding} spaces)
  set(SLUICE_FOUND_TABLE "${SLUICE_FOUND_TABLE}\n  ${name}${spaces}${state}  ${note}" PARENT_SCOPE)
endfunction()

macro(sluice_require package oldest target)
  find_package(${package} QUIET)
  if(NOT TARGET ${target})
    sluice_hint(hint ${package})
    sluice_stop("${package} was not found; ${hint}")
  elseif(${package}_VERSION AND ${package}_VERSION VERSION_LESS ${oldest})
    sluice_hint(hint ${package})
    sluice_stop("${package} is ${${package}_VERSION}: ${oldest} or newer is needed; ${hint}")
  endif()
  sluice_report(${package} yes "${${package}_VERSION}")
endmacro()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12 OR
   CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  sluice_hint(hint compiler)
  sluice_stop("the C++ compiler ${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}: GCC 12 or clang 14, or a newer one, is needed; ${hint}, and -DCMAKE_CXX_COMPILER=NAME")
endif()

sluice_require(fmt 8.1 fmt::fmt)
sluice_require(CLI11 2.1 CLI11::CLI11)
sluice_require(nlohmann_json 3.10 nlohmann_json::nlohmann_json)
sluice_require(ZLIB 1.2 ZLIB::ZLIB)
find_package(Threads REQUIRED)

# Libraries without a package description for CMake, as targets sluice_<name>; without a third
# argument one of headers alone.
macro(sluice_require_library name header)
  string(TOUPPER ${name} upper)
  find_path(${upper}_INCLUDE ${header})
  set(${upper}_LIBRARIES "")
  foreach(library ${ARGN})
    find_library(${upper}_LIBRARY ${library})
    list(APPEND ${upper}_LIBRARIES ${${upper}_LIBRARY})
  endforeach()
  if(NOT ${upper}_INCLUDE OR "${${upper}_LIBRARIES}" MATCHES "NOTFOUND")
    sluice_hint(hint ${name})
    sluice_stop("${name} was not found; ${hint}")
  endif()
  add_library(sluice_${name} INTERFACE)
  target_include_directories(sluice_${name} SYSTEM INTERFACE
                             $<BUILD_INTERFACE:${${upper}_INCLUDE}>)
  target_link_libraries(sluice_${name} INTERFACE ${${upper}_LIBRARIES})
  sluice_report(${name} yes "")
endmacro()

sluice_require_library(pcre2 pcre2.h pcre2-8)
# Its description links a library of what the headers have too.
sluice_require_library(tomlplusplus toml++/toml.h)
sluice_require_library(utf8proc utf8proc.h utf8proc)

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
  set(hint oneDNN)
  if(SLUICE_ONEDNN AND NOT TARGET OpenMP::OpenMP_CXX AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set(hint OpenMP)
  endif()
  sluice_hint(hint ${hint})
  sluice_report(oneDNN no "CPU matrix products use plain loops (slow); ${hint}")
endif()

# MPI's C interface alone: its C++ bindings are gone from the standard.
if(SLUICE_MPI)
  enable_language(C)
  find_package(MPI QUIET COMPONENTS C)
endif()
if(TARGET MPI::MPI_C)
  sluice_report(MPI yes "${MPI_C_VERSION} (${MPI_C_COMPILER})")
else()
  sluice_hint(hint MPI mpirun)
  sluice_report(MPI no "one process only; ${hint}")
endif()
