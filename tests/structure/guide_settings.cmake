# cmake -DSOURCE_DIR=<root of the tree> -P guide_settings.cmake
#
# A reader has none of the settings of a launcher that make root or many ranks pass. So neither
# scripts/run_guides nor a guide sets a variable of Open MPI, and a guide's commands work without. A guide may
# name the network of its reader's cluster.
cmake_minimum_required(VERSION 3.25)
if(NOT IS_DIRECTORY "${SOURCE_DIR}")
  message(FATAL_ERROR "give -DSOURCE_DIR=<root of the tree> (got '${SOURCE_DIR}')")
endif()

file(GLOB files "${SOURCE_DIR}/scripts/run_guides" "${SOURCE_DIR}/docs/guide/*.md")
set(violations 0)
foreach(file IN LISTS files)
  file(READ "${file}" text)
  string(REGEX REPLACE "(OMPI|PRTE)_MCA_[a-z]+(_tcp)?_if_include=" "" text "${text}")
  if(text MATCHES "(OMPI|PRTE|PMIX|HYDRA|SLURM)_[A-Z_a-z]*[\"']?(=|:| *\\])")
    file(RELATIVE_PATH name "${SOURCE_DIR}" "${file}")
    message("${name}: '${CMAKE_MATCH_0}' sets a launcher's variable, which a reader does not: let the "
            "commands work without, for instance by scripts/launch")
    math(EXPR violations "${violations} + 1")
  endif()
endforeach()
if(NOT files OR violations GREATER 0)
  list(LENGTH files count)
  message(FATAL_ERROR "guide settings: ${violations} violations in ${count} files")
endif()
