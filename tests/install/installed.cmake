# The installed programs and package, used from another folder: examples/ is built against them and
# run, a model is trained and continued by the command `sluice`. Variables: BUILD_DIR, SOURCE_DIR,
# WORK_DIR, MPIRUN (may be empty), MANUALS (true: pages were made), CUDA (SLUICE_CUDA).
cmake_minimum_required(VERSION 3.25)

set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR}/elsewhere)

# expect(TEXT COMMAND...): runs it elsewhere; it must succeed and print TEXT (a regular expression).
function(expect text)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${WORK_DIR}/elsewhere RESULT_VARIABLE code
                  OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0 OR NOT output MATCHES "${text}")
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${code}; '${text}' was expected in\n${output}")
  endif()
endfunction()

expect("sluiceConfig.cmake" ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
foreach(path bin/sluice share/sluice/corpus.txt share/bash-completion/completions/sluice
        include/sluice/engine/tensor.h include/sluice/kernels/cuda/map.h)
  if(NOT EXISTS ${prefix}/${path})
    message(FATAL_ERROR "${path} was not installed")
  endif()
endforeach()
if(MANUALS AND NOT EXISTS ${prefix}/share/man/man1/sluice-train_gpt2.1)
  message(FATAL_ERROR "the manual pages were not installed")
endif()

# The headers compile from the installation alone: none includes a file that is not installed. That each
# compiles by itself the build of the project checks (all_verify_interface_header_sets); the long form
# does so here too. Those of kernels/cuda/ need a device compiler; examples/ has one of them.
file(GLOB_RECURSE headers RELATIVE ${prefix}/include/sluice ${prefix}/include/sluice/*.h)
list(FILTER headers EXCLUDE REGEX "^kernels/cuda/")
list(LENGTH headers count)
if(count LESS 150)
  message(FATAL_ERROR "${count} headers were installed")
endif()
set(sources "all.cpp")
set(all "")
foreach(header IN LISTS headers)
  string(APPEND all "#include \"${header}\"\n")
  if("$ENV{SLUICE_TEST_LONG}" STREQUAL "1")
    string(REGEX REPLACE "[/.]" "_" name ${header})
    file(WRITE ${WORK_DIR}/headers/${name}.cpp "#include \"${header}\"\n")
    list(APPEND sources ${name}.cpp)
  endif()
endforeach()
file(WRITE ${WORK_DIR}/headers/all.cpp "${all}")
list(LENGTH sources count)
list(JOIN sources " " sources)
file(WRITE ${WORK_DIR}/headers/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(headers CXX)
find_package(sluice REQUIRED)
add_library(headers OBJECT ${sources})
target_link_libraries(headers PRIVATE sluice::sluice)
")
expect("Build files" ${CMAKE_COMMAND} -S ${WORK_DIR}/headers -B ${WORK_DIR}/headers/build -G Ninja
       -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_FLAGS=-Wall\ -Wextra\ -Werror)
expect("${count}/${count}" ${CMAKE_COMMAND} --build ${WORK_DIR}/headers/build -j 2)

expect("generate +Continues text" ${prefix}/bin/sluice --help)
expect("next +sluice generate" ${prefix}/bin/sluice train_gpt2 --steps 2 --n-layer 1 --n-embd 16
       --n-head 2 --context 16 --val-every 0 --sample-tokens 0 --output run)
expect("^a" ${prefix}/bin/sluice generate --model run/model --prompt a --max-tokens 3)
expect("--overlap --overlap-" bash -c "source '${prefix}/share/bash-completion/completions/sluice'
PATH='${prefix}/bin':$PATH COMP_WORDS=(sluice plan --overl) COMP_CWORD=2
_sluice
echo \"\${COMPREPLY[@]}\" --overlap-")

# build_examples(FOLDER ARGUMENTS...): warnings of the headers are errors.
function(build_examples folder)
  expect("Build files" ${CMAKE_COMMAND} -S ${SOURCE_DIR}/examples -B ${folder} -G Ninja
         -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_FLAGS=-Wall\ -Wextra\ -Werror ${ARGN})
  expect("new_op" ${CMAKE_COMMAND} --build ${folder} -j 2)
endfunction()
build_examples(${WORK_DIR}/build)
if("$ENV{SLUICE_TEST_LONG}" STREQUAL "1")
  foreach(compiler g++ clang++)
    foreach(standard 20 23)
      build_examples(${WORK_DIR}/build-${compiler}-${standard} -DCMAKE_CXX_COMPILER=${compiler}
                     -DCMAKE_CXX_STANDARD=${standard})
    endforeach()
  endforeach()
endif()
file(WRITE ${WORK_DIR}/elsewhere/points.txt "0 0 0\n1 1 0\n0 1 1\n1 0 1\n")
expect("4 of 4 right" ${WORK_DIR}/build/mlp points.txt)
set(gpu "not compared")
if(CUDA STREQUAL "simt")
  set(gpu "differs from the CPU by at most")
endif()
expect("gradient: agrees.*GPU: ${gpu}" ${WORK_DIR}/build/new_op)
set(loss "step 100: loss 0.2377")
expect("${loss}" ${WORK_DIR}/build/data_parallel)
if(MPIRUN)
  separate_arguments(MPIRUN_FLAGS)
  expect("${loss}" ${MPIRUN} ${MPIRUN_FLAGS} -n 2 ${WORK_DIR}/build/data_parallel)
endif()
