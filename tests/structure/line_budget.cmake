# cmake -DSOURCE_DIR=<root of the tree> -P line_budget.cmake
#
# No source file over 400 lines and no header over 150: a file that outgrows its budget holds two
# things. Build and hidden folders, and the output of runs, are not looked at.
cmake_minimum_required(VERSION 3.25)
if(NOT IS_DIRECTORY "${SOURCE_DIR}")
  message(FATAL_ERROR "give -DSOURCE_DIR=<root of the tree> (got '${SOURCE_DIR}')")
endif()

set(FILE_BUDGET 400)
set(HEADER_BUDGET 150)

# One folder at a time, so that a large build tree is not even walked through.
set(files "")
file(GLOB entries RELATIVE "${SOURCE_DIR}" "${SOURCE_DIR}/*")
foreach(entry IN LISTS entries)
  if(entry MATCHES "^(\\.|build|cmake-build|deps$|runs$)")
    continue()
  elseif(IS_DIRECTORY "${SOURCE_DIR}/${entry}")
    set(root "${SOURCE_DIR}/${entry}")
    file(GLOB_RECURSE found RELATIVE "${SOURCE_DIR}"
         "${root}/*.h" "${root}/*.cpp" "${root}/*.cu" "${root}/*.cuh" "${root}/*.py")
    list(APPEND files ${found})
  elseif(entry MATCHES "\\.(h|cpp|cu|cuh|py)$")
    list(APPEND files "${entry}")
  endif()
endforeach()
list(FILTER files EXCLUDE REGEX "/\\.")

set(checked 0)
set(violations 0)
foreach(file IN LISTS files)
  # Lines are counted by their ends, since brackets in the text would upset a list of the lines.
  file(READ "${SOURCE_DIR}/${file}" text)
  string(REGEX MATCHALL "\n" newlines "${text}")
  list(LENGTH newlines count)
  if(text MATCHES "[^\n]$")
    math(EXPR count "${count} + 1")
  endif()
  set(budget ${FILE_BUDGET})
  if(file MATCHES "\\.h$")
    set(budget ${HEADER_BUDGET})
  endif()
  if(count GREATER budget)
    math(EXPR first_over "${budget} + 1")
    message("${file}:${first_over}: ${count} lines, the budget is ${budget}: split the file")
    math(EXPR violations "${violations} + 1")
  endif()
  math(EXPR checked "${checked} + 1")
endforeach()

if(checked EQUAL 0)
  message(FATAL_ERROR "no source files below ${SOURCE_DIR}")
elseif(violations GREATER 0)
  message(FATAL_ERROR "line budget: ${violations} violations in ${checked} files")
endif()
message(STATUS "line budget: ${checked} files, no violations")
