# How every target of the project is compiled, and the one way to declare a library.

add_library(sluice_options INTERFACE)
# For C++ alone: nvcc, which compiles the .cu files, knows none of these flags (cmake/Cuda.cmake).
function(sluice_cxx_options)
  target_compile_options(sluice_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${ARGN}>")
endfunction()
# -Wrestrict is wrong about std::string in GCC 12 (its bug 105651).
sluice_cxx_options(-Wall -Wextra -Wconversion -Wshadow -Werror
                   $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
# clang says where it does not vectorize a loop of `omp simd`, which GCC does. Its -Wconversion has signs
# too, GCC's for C++ has not.
sluice_cxx_options($<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed> $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>)
# What the optimizer says of memory is wrong now and then, about other lines in each version of GCC and for
# each processor (13 to 16: of vectors that a function returns or copies). It may say so, and compile.
set(memory_warnings array-bounds stringop-overflow stringop-overread free-nonheap-object)
list(TRANSFORM memory_warnings PREPEND -Wno-error=)
sluice_cxx_options("$<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:${memory_warnings}>")
target_include_directories(sluice_options INTERFACE ${PROJECT_SOURCE_DIR})
if(SLUICE_MARCH)
  sluice_cxx_options(-march=${SLUICE_MARCH})
endif()
if(SLUICE_SANITIZE STREQUAL "address")
  sluice_cxx_options(-fsanitize=address,undefined -fno-sanitize-recover=all
                     -fno-omit-frame-pointer)
  target_link_options(sluice_options INTERFACE -fsanitize=address,undefined)
elseif(SLUICE_SANITIZE STREQUAL "thread")
  sluice_cxx_options(-fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(sluice_options INTERFACE -fsanitize=thread)
elseif(SLUICE_SANITIZE)
  message(FATAL_ERROR "SLUICE_SANITIZE is '${SLUICE_SANITIZE}': give address, thread or nothing")
endif()

# What makes a bug in a program hard to misuse; where no sanitizer finds it first. Paths of the source
# folder are cut, so that two folders give the same bytes. Fortification needs an optimised build.
if(SLUICE_HARDEN AND NOT SLUICE_SANITIZE AND CMAKE_BUILD_TYPE STREQUAL "Release")
  include(CheckPIESupported)
  check_pie_supported(LANGUAGES CXX)
  # Some distributions' compilers define it, and a second definition is a warning.
  # The kernels have arrays on their stacks and see no foreign text: their calls stay as they are.
  sluice_cxx_options($<$<NOT:$<BOOL:$<TARGET_PROPERTY:SLUICE_HOT>>>:-fstack-protector-strong>
                     -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  target_link_options(sluice_options INTERFACE -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
  sluice_cxx_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
endif()

# sluice_library(NAME [FOLDER path] MODULES ... LINKS ...)
# The static library of a folder. A module is NAME.h with NAME.cpp, or one of them alone. Every header
# is public and must compile alone: a source of its name includes it first (the test `structure:
# include order` checks it), and the target all_verify_interface_header_sets compiles the others. LINKS
# are the libraries to its left and third parties.
function(sluice_library name)
  cmake_parse_arguments(ARG "" "FOLDER" "MODULES;LINKS;PRIVATE_LINKS" ${ARGN})
  set(sources "")
  set(paired "")  # headers with a source
  set(lone "")
  foreach(module IN LISTS ARG_MODULES)
    if(ARG_FOLDER)
      set(module ${ARG_FOLDER}/${module})
    endif()
    set(path ${CMAKE_CURRENT_SOURCE_DIR}/${module})
    if(EXISTS ${path}.cpp)
      list(APPEND sources ${module}.cpp)
    endif()
    if(EXISTS ${path}.h AND EXISTS ${path}.cpp)
      list(APPEND paired ${module}.h)
    elseif(EXISTS ${path}.h)
      list(APPEND lone ${module}.h)
    elseif(NOT EXISTS ${path}.cpp)
      message(FATAL_ERROR "${name}: there is neither ${path}.h nor ${path}.cpp")
    endif()
  endforeach()
  add_library(${name} STATIC ${sources})
  target_sources(${name} PUBLIC
                 FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${paired}
                 FILE_SET lone TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${lone})
  set_target_properties(${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON
                        INTERFACE_HEADER_SETS_TO_VERIFY lone
                        UNITY_BUILD ${SLUICE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  # Warnings and instruction sets are the project's own business, not that of programs that use it.
  target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:sluice_options> ${ARG_LINKS}
                        PRIVATE ${ARG_PRIVATE_LINKS})
  target_compile_features(${name} PUBLIC cxx_std_20)
  string(REPLACE sluice_ "" short ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${short})
endfunction()
