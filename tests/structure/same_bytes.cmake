# cmake -DSOURCE_DIR=<root of the tree> -DWORK_DIR=<folder for copies, emptied first> -P same_bytes.cmake
#
# Two copies of the tree, in folders whose paths differ in length, compile to the same bytes. Two
# objects stand for all: sources that are compiled together and name themselves in errors, and the one
# with the commit in it.
cmake_minimum_required(VERSION 3.25)
set(work "${WORK_DIR}/structure_same_bytes")
set(objects optim/CMakeFiles/sluice_optim.dir/Unity/unity_1_cxx.cxx.o
            apps/CMakeFiles/sluice_cli.dir/cli/version.cpp.o)
file(REMOVE_RECURSE "${work}")
set(ENV{CCACHE_DISABLE} 1)  # which can make paths relative by itself
foreach(copy a another/longer)
  foreach(part CMakeLists.txt LICENSE README.md apps cmake docs engine kernels models optim packaging parallel)
    file(COPY "${SOURCE_DIR}/${part}" DESTINATION "${work}/${copy}")
  endforeach()
  execute_process(COMMAND "${CMAKE_COMMAND}" -S "${work}/${copy}" -B "${work}/${copy}/out" -G Ninja
                          -DSLUICE_BUILD_TESTS=OFF -DSLUICE_BUILD_BENCH=OFF -DSLUICE_CUDA=off
                  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${work}/${copy}/out" -j 2 --target ${objects}
                  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endforeach()
foreach(object IN LISTS objects)
  execute_process(COMMAND cmp "${work}/a/out/${object}" "${work}/another/longer/out/${object}"
                  RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${object} differs between two folders: they are kept in ${work}")
  endif()
endforeach()
file(REMOVE_RECURSE "${work}")
