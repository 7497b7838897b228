# cmake -DSOURCE_DIR=<root of the tree> -P include_order.cmake
#
# Folders form a line: a file includes only from its own folder or from folders to the left; so do the
# rooms of a folder that has a line of its own. Nothing
# includes tests/, bench/ or python/ but they themselves, which may include anything. Libraries that are
# slow to compile, or that only one folder may know, stay out of the headers and in that folder. A
# source includes the header of its name first, which shows that it compiles alone.
cmake_minimum_required(VERSION 3.25)
if(NOT IS_DIRECTORY "${SOURCE_DIR}")
  message(FATAL_ERROR "give -DSOURCE_DIR=<root of the tree> (got '${SOURCE_DIR}')")
endif()

set(LINE kernels engine optim parallel models apps)  # from left to right
set(OUTSIDE tests bench python)
# The rooms of optim/, parallel/ and apps/, each from left to right. Every file there is in one of them.
set(ROOMS optim/space optim/offload optim
    parallel/comm/transport parallel/comm/backend parallel/comm parallel/data_parallel
    parallel/pipeline parallel/flight_recorder parallel
    apps/cli/parse apps/cli apps/flags apps/output apps/data/tokens apps/data apps/checkpoint apps/trace apps/config
    apps/train
    apps/plan/cost apps/plan apps/plan/cluster apps/report apps/train_gpt2 apps)
set(HAS_ROOMS optim parallel apps)

# Third-party headers that no header may include. json_fwd.hpp is meant for headers.
set(HEAVY "^(nlohmann/json\\.hpp|CLI/|fmt/|catch2/|(oneapi/)?dnnl|mpi\\.h|nccl)")
# pattern|folder: the only folder of the line whose files may include it.
set(OWNED "^(mpi|nccl)\\.h|parallel/" "^(oneapi/)?dnnl|kernels/cpu/" "^CLI/|apps/"
          "^(cuda|cublas|cudnn)|kernels/cuda/")

set(violations 0)

# The line number is looked up only for a violation: counting lines of every file would be slow.
function(report file line sentence)
  file(READ "${SOURCE_DIR}/${file}" text)
  string(REGEX REPLACE "[][]" "" text "\n${text}")
  string(FIND "${text}" "\n${line}" at)
  string(SUBSTRING "${text}" 0 ${at} before)
  string(REGEX MATCHALL "\n" newlines "${before}")
  list(LENGTH newlines number)
  math(EXPR number "${number} + 1")
  message("${file}:${number}: ${sentence}")
  math(EXPR violations "${violations} + 1")
  set(violations ${violations} PARENT_SCOPE)
endfunction()

macro(check_include)
  string(REGEX REPLACE "/.*" "" target "${header}")
  list(FIND LINE "${target}" target_place)
  if(target IN_LIST OUTSIDE)
    if(place GREATER -1)
      report("${file}" "${line}" "${folder}/ must not include ${header}: nothing does")
    endif()
  elseif(place GREATER -1 AND target_place GREATER place)
    report("${file}" "${line}" "${folder}/ must not include ${header}: ${target}/ is to its right")
  elseif(place GREATER -1 AND quoted AND target_place LESS 0)
    report("${file}" "${line}"
           "\"${header}\": write the path from the root of the tree (or <> for a library)")
  endif()

  if(target STREQUAL folder AND folder IN_LIST HAS_ROOMS)
    string(REGEX REPLACE "/[^/]*$" "" target_room "${header}")
    list(FIND ROOMS "${target_room}" target_room_place)
    if(target_room_place GREATER room_place)
      report("${file}" "${line}"
             "${room}/ must not include ${header}: ${target_room}/ is to its right")
    endif()
  endif()

  # Its versions 2 and 3 have other headers, which one of ours hides; everything else stays out of headers.
  if(header MATCHES "^catch2/" AND NOT file STREQUAL "tests/support/catch.h")
    report("${file}" "${line}" "include tests/support/catch.h, which knows every version of Catch2")
  endif()
  # The table of NCCL's functions, which is no public header, needs their types; so does the stand-in.
  if(file MATCHES "\\.(h|hpp)$" AND header MATCHES "${HEAVY}"
     AND NOT file STREQUAL "tests/support/catch.h"
     AND NOT (file MATCHES "^(parallel/comm/backend/nccl_library.h|tests/nccl/)" AND header STREQUAL "nccl.h"))
    report("${file}" "${line}" "a header must not include ${header}: include it in the .cpp")
  endif()
  foreach(rule IN LISTS OWNED)
    string(REGEX REPLACE "[|][^|]*$" "" pattern "${rule}")
    string(REGEX REPLACE "^.*[|]" "" owner "${rule}")
    if(place GREATER -1 AND header MATCHES "${pattern}" AND NOT file MATCHES "^${owner}")
      report("${file}" "${line}" "only ${owner} may include ${header}")
    endif()
  endforeach()
endmacro()

set(checked 0)
foreach(folder IN LISTS LINE OUTSIDE)
  list(FIND LINE "${folder}" place)
  set(root "${SOURCE_DIR}/${folder}")
  file(GLOB_RECURSE files RELATIVE "${SOURCE_DIR}"
       "${root}/*.h" "${root}/*.hpp" "${root}/*.inl" "${root}/*.cpp" "${root}/*.cu" "${root}/*.cuh")
  foreach(file IN LISTS files)
    if(file MATCHES "/\\.")
      continue()
    endif()
    math(EXPR checked "${checked} + 1")
    file(STRINGS "${SOURCE_DIR}/${file}" lines
         REGEX "^[ \t]*#[ \t]*include[ \t]*[\"<]")
    string(REGEX REPLACE "[][]" "" lines "${lines}")  # a lone bracket would join list elements
    string(REGEX REPLACE "[.]cpp$" ".h" own "${file}")
    string(REGEX REPLACE "/[^/]*$" "" room "${file}")
    list(FIND ROOMS "${room}" room_place)
    if(folder IN_LIST HAS_ROOMS AND room_place LESS 0)
      message("${file}: ${room}/ is none of the rooms of ${folder}/")
      math(EXPR violations "${violations} + 1")
    endif()
    if(place GREATER -1 AND file MATCHES "[.]cpp$" AND EXISTS "${SOURCE_DIR}/${own}")
      string(REGEX REPLACE ";.*" "" line "${lines}")
      if(NOT line STREQUAL "#include \"${own}\"")
        report("${file}" "${line}" "${own} must be included first")
      endif()
    endif()
    foreach(line IN LISTS lines)
      if(line MATCHES "include[ \t]*([\"<])([^\">]+)[\">]")
        set(header "${CMAKE_MATCH_2}")
        string(COMPARE EQUAL "${CMAKE_MATCH_1}" "\"" quoted)
        check_include()
      endif()
    endforeach()
  endforeach()
endforeach()

if(checked EQUAL 0)
  message(FATAL_ERROR "no source files below ${SOURCE_DIR}")
elseif(violations GREATER 0)
  message(FATAL_ERROR "include order: ${violations} violations in ${checked} files")
endif()
message(STATUS "include order: ${checked} files, no violations")
