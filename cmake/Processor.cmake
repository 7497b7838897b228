# What apps/cli/processor.cpp is compiled with: the instruction sets that -march lets everything else
# use, as a definition, and itself for every processor of its kind. On other than x86, which the check
# does not know, nothing.
set(SLUICE_BASELINE "")
if(SLUICE_MARCH AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=${SLUICE_MARCH} -dM -E -x c++ /dev/null
                  OUTPUT_VARIABLE macros ERROR_QUIET)
  set(sets "")
  # By the names that __builtin_cpu_supports of GCC 12 and 16 and Clang 14 have; the rest comes with these.
  foreach(set sse3 ssse3 sse4.1 sse4.2 sse4a popcnt aes pclmul avx fma fma4 xop bmi bmi2 avx2
          avx512f avx512cd avx512bw avx512dq avx512vl avx512vbmi avx512ifma
          avx512vpopcntdq avx512vbmi2 avx512vnni avx512bitalg avx512bf16 gfni vpclmulqdq)
    string(TOUPPER "${set}" macro)
    string(REPLACE "." "_" macro "${macro}")
    if(macros MATCHES "#define __${macro}__ ")
      string(APPEND sets "SET(\"${set}\")")
    endif()
  endforeach()
  set(SLUICE_BASELINE "-march=x86-64")
  if(sets)
    list(APPEND SLUICE_BASELINE "-DSLUICE_INSTRUCTION_SETS=${sets}")
  endif()
endif()
