# cmake -DSOURCE_DIR=<root of the tree> -DWORK_DIR=<folder for README files> -DPYTHON=<python3> -P scoreboard.cmake
#
# scripts/scoreboard --check accepts the README and the scoreboard as they are. It refuses a README with another
# figure, with a figure that no raw file has, and without one of its sentences.
cmake_minimum_required(VERSION 3.25)
set(wrong 0)

# check(<README> <text that a refusal must contain, or ACCEPT>)
function(check readme expected)
  execute_process(COMMAND "${PYTHON}" "${SOURCE_DIR}/scripts/scoreboard" --check --readme "${readme}"
                  RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(FIND "${output}" "${expected}" at)
  if((expected STREQUAL "ACCEPT" AND NOT code EQUAL 0) OR
     (NOT expected STREQUAL "ACCEPT" AND (code EQUAL 0 OR at LESS 0)))
    message("expected ${expected}, but (code ${code}) it said:\n${output}")
    math(EXPR wrong "${wrong} + 1")
  endif()
  set(wrong ${wrong} PARENT_SCOPE)
endfunction()

set(copy "${WORK_DIR}/scoreboard_readme.md")
file(READ "${SOURCE_DIR}/README.md" readme)
check("${SOURCE_DIR}/README.md" ACCEPT)

string(REGEX REPLACE "to 774M [0-9.]+" "to 774M 1.33" text "${readme}")
file(WRITE "${copy}" "${text}")
check("${copy}" "the raw files have")

file(WRITE "${copy}" "${readme}\nIt is 42 times as fast as others.\n")
check("${copy}" "which no raw file has")

string(REGEX REPLACE "as fast as compiled" "faster than compiled" text "${readme}")
file(WRITE "${copy}" "${text}")
check("${copy}" "README.md says 0 times")

if(wrong GREATER 0)
  message(FATAL_ERROR "scoreboard: ${wrong} of 4 cases are wrong")
endif()
message(STATUS "scoreboard: the README's figures are those of the raw files")
