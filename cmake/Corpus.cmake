# Joins the project's documentation and sources into share/sluice/corpus.txt beside bin/. Made at
# configure time: it changes rarely and nothing depends on its exact bytes.
file(GLOB_RECURSE corpus_files RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/docs/*.md
     ${PROJECT_SOURCE_DIR}/kernels/*.h ${PROJECT_SOURCE_DIR}/kernels/*.cpp
     ${PROJECT_SOURCE_DIR}/engine/*.h ${PROJECT_SOURCE_DIR}/engine/*.cpp
     ${PROJECT_SOURCE_DIR}/optim/*.h ${PROJECT_SOURCE_DIR}/optim/*.cpp
     ${PROJECT_SOURCE_DIR}/models/*.h ${PROJECT_SOURCE_DIR}/models/*.cpp
     ${PROJECT_SOURCE_DIR}/apps/*.h ${PROJECT_SOURCE_DIR}/apps/*.cpp)
set(corpus ${CMAKE_BINARY_DIR}/share/sluice/corpus.txt)
list(TRANSFORM corpus_files PREPEND ${PROJECT_SOURCE_DIR}/)
execute_process(COMMAND ${CMAKE_COMMAND} -E cat ${corpus_files} OUTPUT_VARIABLE corpus_text)
file(CONFIGURE OUTPUT ${corpus} CONTENT "@corpus_text@" @ONLY)
