# What `cmake --install` puts where, in two components: `client` (the library, its headers, a CMake
# package, a pkg-config file, the plug-ins) and `appliance` (sluiced, settings, service unit).
include(CMakePackageConfigHelpers)

# --- client
set(SLUICE_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
install(TARGETS sluice EXPORT sluiceTargets COMPONENT client)
install(DIRECTORY client/include/sluice DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT client
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT sluiceTargets NAMESPACE sluice:: DESTINATION ${SLUICE_CMAKE_DIR} COMPONENT client)

configure_package_config_file(cmake/sluiceConfig.cmake.in ${PROJECT_BINARY_DIR}/sluiceConfig.cmake
                              INSTALL_DESTINATION ${SLUICE_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sluiceConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sluiceConfig.cmake
              ${PROJECT_BINARY_DIR}/sluiceConfigVersion.cmake
        DESTINATION ${SLUICE_CMAKE_DIR} COMPONENT client)

# The prefix relative to the folder of sluice.pc, so that an installed tree can be moved.
file(RELATIVE_PATH pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
configure_file(cmake/sluice.pc.in ${PROJECT_BINARY_DIR}/sluice.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT client)

# The client opens it at run time, when an address asks for vhost. It is no library to link with, so
# it is in a folder below the library's.
if(TARGET sluice_dpdk_plugin)
  install(TARGETS sluice_dpdk_plugin
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/sluice COMPONENT client)
endif()
# Likewise, for gradients in device memory.
if(TARGET sluice_cuda_plugin)
  install(TARGETS sluice_cuda_plugin
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/sluice COMPONENT client OPTIONAL)
endif()

# --- appliance
if(TARGET sluiced)
  install(TARGETS sluiced RUNTIME COMPONENT appliance)
  install(TARGETS sluice_libssl sluice_libcrypto
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/sluiced COMPONENT appliance)
  install(DIRECTORY config/examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT appliance)
  install(PROGRAMS dataplane/ops/sluicectl DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT appliance)
  install(FILES dataplane/ops/sluicectl.bash RENAME sluicectl
          DESTINATION share/bash-completion/completions COMPONENT appliance)
  install(FILES config/deploy/prometheus.yml config/deploy/alerts.yml
                config/deploy/grafana-dashboard.json config/deploy/sluiced-devices.conf LICENSE
          DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT appliance)
  install(FILES config/deploy/sluiced.service DESTINATION lib/systemd/system COMPONENT appliance)
  # Under /usr the settings belong in /etc, elsewhere under the prefix; known only at install time.
  install(CODE "
    set(etc \"\${CMAKE_INSTALL_PREFIX}/etc\")
    if(CMAKE_INSTALL_PREFIX STREQUAL \"/usr\")
      set(etc \"/etc\")
    endif()
    file(INSTALL \"${PROJECT_SOURCE_DIR}/config/appliance.toml\" DESTINATION \"\${etc}/sluice\")"
    COMPONENT appliance)
endif()
