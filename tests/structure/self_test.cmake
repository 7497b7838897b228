# cmake -DWORK_DIR=<folder for the trees, emptied first> -P self_test.cmake
#
# A check that cannot fail proves nothing: this gives each structure check small trees that break
# one rule each, and one tree that breaks none.
cmake_minimum_required(VERSION 3.25)
if(NOT WORK_DIR)
  message(FATAL_ERROR "give -DWORK_DIR=<folder for the trees, emptied first>")
endif()
set(TREE "${WORK_DIR}/structure_self_test")  # a folder of its own: it is removed
set(cases 0)
set(wrong 0)

function(write_lines file count)
  math(EXPR blank "${count} - 1")
  string(REPEAT "\n" ${blank} text)
  file(WRITE "${TREE}/${file}" "${text}int last;\n")
endfunction()

# run(<script> <text that a refusal must contain, or ACCEPT>) on the tree as it stands.
function(run script expected)
  execute_process(COMMAND "${CMAKE_COMMAND}" "-DSOURCE_DIR=${TREE}" -P
                          "${CMAKE_CURRENT_LIST_DIR}/${script}.cmake"
                  RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(FIND "${output}" "${expected}" at)
  if(expected STREQUAL "ACCEPT" AND NOT code EQUAL 0)
    message("${script} refused a good tree:\n${output}")
    math(EXPR wrong "${wrong} + 1")
  elseif(NOT expected STREQUAL "ACCEPT" AND (code EQUAL 0 OR at LESS 0))
    message("${script} should have refused with '${expected}', but (code ${code}) said:\n${output}")
    math(EXPR wrong "${wrong} + 1")
  endif()
  math(EXPR cases "${cases} + 1")
  set(wrong ${wrong} PARENT_SCOPE)
  set(cases ${cases} PARENT_SCOPE)
endfunction()

function(good_tree)
  file(REMOVE_RECURSE "${TREE}")
  file(WRITE "${TREE}/kernels/base/view.h" "#pragma once\n#include <vector>\n")
  file(WRITE "${TREE}/kernels/cpu/gemm.cpp"
       "#include <dnnl.hpp>\n#include \"kernels/base/view.h\"\nint a[] = {1; 2};\n")
  file(WRITE "${TREE}/engine/tensor.h"
       "#include <nlohmann/json_fwd.hpp>\n#include \"kernels/base/view.h\"\n")
  file(WRITE "${TREE}/engine/tensor.cpp"
       "// #include \"apps/a.h\"\n#include \"engine/tensor.h\"\n#include <fmt/core.h>\n")
  file(WRITE "${TREE}/parallel/comm/transport/mpi.cpp" "#include <mpi.h>\n")
  file(WRITE "${TREE}/apps/main.cpp" "#include <CLI/CLI.hpp>\n#include \"engine/tensor.h\"\n")
  file(WRITE "${TREE}/tests/support/catch.h" "#include <catch2/catch.hpp>\n")
  file(WRITE "${TREE}/tests/engine/tensor.cpp"
       "#include \"tests/support/catch.h\"\n#include \"apps/main.h\"\n")
  file(WRITE "${TREE}/bench/gemm.cpp" "#include \"tests/support/catch.h\"\n")
  file(WRITE "${TREE}/apps/plan/cost/model.cpp" "#include \"apps/train/trainer.h\"\n")
  file(WRITE "${TREE}/apps/train/trainer.h" "#include \"apps/cli/progress.h\"\n")
  write_lines(engine/long.cpp 400)
  write_lines(engine/tall.h 150)
  # What lies in a build or a hidden folder is nobody's business.
  file(WRITE "${TREE}/kernels/.cache/x.cpp" "#include \"apps/a.h\"\n")
  file(WRITE "${TREE}/build/default/kernels/x.cpp" "#include \"apps/a.h\"\n")
  write_lines(build/default/generated.cpp 1000)
  write_lines(.hidden/generated.py 1000)
  write_lines(scripts/.venv/generated.py 1000)
endfunction()

# bad_include(<file> <its text> <expected refusal>): the good tree with one more file in it.
function(bad_include file text expected)
  file(WRITE "${TREE}/${file}" "${text}")
  run(include_order "${file}:${expected}")
  file(REMOVE "${TREE}/${file}")
  set(wrong ${wrong} PARENT_SCOPE)
  set(cases ${cases} PARENT_SCOPE)
endfunction()

function(bad_length file count expected)
  write_lines(${file} ${count})
  run(line_budget "${file}:${expected}")
  file(REMOVE "${TREE}/${file}")
  set(wrong ${wrong} PARENT_SCOPE)
  set(cases ${cases} PARENT_SCOPE)
endfunction()

good_tree()
run(include_order ACCEPT)
run(line_budget ACCEPT)

bad_include(kernels/cpu/x.cpp "\n\n#include \"engine/tensor.h\"\n" "3: kernels/ must not")
bad_include(engine/tall.cpp "#include <vector>\n#include \"engine/tall.h\"\n"
            "1: engine/tall.h must be included first")
bad_include(engine/x.h "int a[2];\n  #  include \"models/m.h\" // why\n" "2: engine/ must not")
bad_include(engine/w.cpp "#include <map>  // [\n#include \"apps/a;b.h\"\n" "2: engine/ must not")
bad_include(optim/x.cu "#include <parallel/comm/mesh.h>\n" "1: optim/ must not include parallel/comm/mesh.h")
bad_include(models/x.cuh "#include \"apps/train/config.h\"\n" "1: models/ must not")
bad_include(parallel/comm/x.cpp "// a\n#include \"models/m.h\"\n" "2: parallel/ must not")
bad_include(apps/x.cpp "#include \"tests/support/catch.h\"\n" "1: apps/ must not include tests/")
bad_include(models/y.cpp "#include \"bench/timing.h\"\n" "1: models/ must not include bench/")
bad_include(engine/y.cpp "#include \"../apps/a.h\"\n" "1: \"../apps/a.h\": write the path")
bad_include(engine/z.cpp "#include \"tensor.h\"\n" "1: \"tensor.h\": write the path")
bad_include(apps/train/x.cpp "#include \"apps/plan/cost/model.h\"\n"
            "1: apps/train/ must not include apps/plan/cost/model.h: apps/plan/cost/ is to its right")
bad_include(apps/plan/cost/x.h "#include \"apps/plan/planner.h\"\n" "1: apps/plan/cost/ must not")
bad_include(optim/space/x.h "#include \"optim/adamw.h\"\n" "1: optim/space/ must not")
bad_include(parallel/x.cpp "int a;\n" " parallel/ is none of the rooms of parallel/")
bad_include(apps/misc/x.cpp "int a;\n" " apps/misc/ is none of the rooms of apps/")
foreach(heavy nlohmann/json.hpp CLI/CLI.hpp fmt/core.h catch2/catch.hpp nccl.h mpi.h dnnl.hpp oneapi/dnnl/dnnl.hpp)
  bad_include(apps/heavy.h "#pragma once\n#include <${heavy}>\n"
              "2: a header must not include ${heavy}")
endforeach()
bad_include(tests/support/x.h "#include <nlohmann/json.hpp>\n" "1: a header must not")
bad_include(apps/y.cpp "#include <mpi.h>\n" "1: only parallel/ may include mpi.h")
bad_include(kernels/cuda/x.cpp "#include <dnnl.hpp>\n" "1: only kernels/cpu/ may include dnnl.hpp")
bad_include(engine/w.h "#include <cuda_runtime.h>\n" "1: only kernels/cuda/ may include")
bad_include(kernels/cpu/x.cpp "#include <cublasLt.h>\n" "1: only kernels/cuda/ may include")
bad_include(models/z.cpp "#include <CLI/CLI.hpp>\n" "1: only apps/ may include CLI/CLI.hpp")

bad_length(engine/x.cpp 401 "401: 401 lines, the budget is 400")
bad_length(kernels/cuda/x.cu 500 "401: 500 lines")
bad_length(kernels/cuda/x.cuh 401 "401: 401 lines")
bad_length(scripts/x.py 401 "401: 401 lines")
bad_length(top.py 401 "401: 401 lines")
bad_length(engine/x.h 151 "151: 151 lines, the budget is 150")

foreach(number RANGE 1 26)
  file(WRITE "${TREE}/models/m${number}.cpp" "int a;\n")
  file(WRITE "${TREE}/kernels/cpu/m${number}.cpp" "int a;\n")
endforeach()
run(line_budget ACCEPT)
file(WRITE "${TREE}/models/m27.h" "int a;\n")
run(line_budget "models: 27 files, the budget is 26")
file(REMOVE_RECURSE "${TREE}/models")

# Every violation is named, not only the first; an empty tree is a mistake of the caller's.
file(WRITE "${TREE}/engine/x.cpp" "#include \"apps/a.h\"\n#include \"optim/b.h\"\n")
run(include_order "2 violations")
file(REMOVE_RECURSE "${TREE}")
file(MAKE_DIRECTORY "${TREE}")
run(include_order "no source files")
run(line_budget "no source files")
file(REMOVE_RECURSE "${TREE}")

if(wrong GREATER 0)
  message(FATAL_ERROR "structure self test: ${wrong} of ${cases} cases went wrong")
endif()
message(STATUS "structure self test: ${cases} cases")
