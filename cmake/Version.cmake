# The commit is read at configure time; a tree without git says so.
execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} rev-parse --short HEAD
                OUTPUT_VARIABLE SLUICE_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT SLUICE_COMMIT)
  set(SLUICE_COMMIT "unknown")
endif()
