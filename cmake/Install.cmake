# cmake --install: the programs behind one command, the libraries and headers for other projects'
# find_package(sluice), manual pages and completion. cpack makes two Debian packages of them.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The programs. Their names are common words, so only the command that starts them is on the PATH.
get_target_property(programs sluice_programs MANUALLY_ADDED_DEPENDENCIES)
install(TARGETS ${programs} RUNTIME DESTINATION libexec/sluice COMPONENT programs)
install(PROGRAMS packaging/sluice DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
install(FILES ${CMAKE_BINARY_DIR}/share/sluice/corpus.txt DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice
        COMPONENT programs)
install(FILES packaging/completion.bash
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME sluice
        COMPONENT programs)

# Manual pages from --help, where this build's programs can run.
find_program(SLUICE_HELP2MAN help2man)
if(SLUICE_HELP2MAN AND NOT CMAKE_CROSSCOMPILING AND NOT SLUICE_SANITIZE)
  foreach(program IN LISTS programs)
    set(page ${CMAKE_BINARY_DIR}/man/sluice-${program}.1)
    add_custom_command(OUTPUT ${page} DEPENDS ${program} VERBATIM
      COMMAND sh ${PROJECT_SOURCE_DIR}/packaging/manual_page ${SLUICE_HELP2MAN}
              "Sluice ${PROJECT_VERSION}" $<TARGET_FILE:${program}> ${page})
    list(APPEND pages ${page})
  endforeach()
  add_custom_target(manuals ALL DEPENDS ${pages})
  install(FILES ${pages} packaging/sluice.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
          COMPONENT programs)
endif()

# The libraries and every public header.
set(libraries sluice_kernels sluice_engine sluice_optim sluice_parallel sluice_models)
add_library(sluice_sluice INTERFACE)
set_target_properties(sluice_sluice PROPERTIES EXPORT_NAME sluice)
target_link_libraries(sluice_sluice INTERFACE ${libraries})
set(found_libraries sluice_pcre2 sluice_utf8proc)
foreach(library sluice_onednn sluice_cuda)
  if(TARGET ${library})
    list(APPEND found_libraries ${library})
  endif()
endforeach()
install(TARGETS ${libraries} sluice_sluice ${found_libraries} EXPORT sluiceTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice COMPONENT development
        FILE_SET lone DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice COMPONENT development
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice)
# What CUDA kernels share, for kernels of one's own.
install(DIRECTORY kernels/cuda DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice/kernels
        COMPONENT development FILES_MATCHING PATTERN "*.h")

# The package for find_package.
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
if(TARGET sluice_onednn)
  set(SLUICE_NEEDS_OPENMP TRUE)
else()
  set(SLUICE_NEEDS_OPENMP FALSE)
endif()
if(TARGET sluice_cuda)
  set(SLUICE_NEEDS_CUDA TRUE)
else()
  set(SLUICE_NEEDS_CUDA FALSE)
endif()
configure_package_config_file(packaging/sluiceConfig.cmake.in
                              ${CMAKE_BINARY_DIR}/package/sluiceConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/sluiceConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/sluiceConfig.cmake
              ${CMAKE_BINARY_DIR}/package/sluiceConfigVersion.cmake
        DESTINATION ${package} COMPONENT development)
install(EXPORT sluiceTargets NAMESPACE sluice:: DESTINATION ${package} COMPONENT development)

# Debian packages, by `cpack` in the build folder. They are for other machines: configure with
# -DSLUICE_MARCH=x86-64-v3 (AVX2); a program says so at once on a processor that is older.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME sluice)
set(CPACK_PACKAGE_CONTACT "the Sluice authors")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains GPT-2 class models larger than the GPU")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_COMPONENTS_ALL programs development)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME sluice)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_PROGRAMS_DESCRIPTION "The programs: training, planning, generation, conversion.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libsluice-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Static libraries and headers, for find_package(sluice).")
set(development libfmt-dev zlib1g-dev libpcre2-dev libutf8proc-dev)
if(TARGET sluice_onednn)
  list(APPEND development libdnnl-dev)
endif()
if(TARGET MPI::MPI_C)
  list(APPEND development libopenmpi-dev)
  set(CPACK_DEBIAN_PROGRAMS_PACKAGE_RECOMMENDS openmpi-bin)
endif()
list(JOIN development ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
include(CPack)
