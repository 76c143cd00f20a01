# The Debian package of the appliance: `cmake --build build --target package`.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME sluiced)
set(CPACK_PACKAGE_VENDOR "The Sluice authors")
set(CPACK_PACKAGE_CONTACT "The Sluice authors <sluice@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "software switch that sums gradients")
set(CPACK_PACKAGE_DESCRIPTION
    "A DPDK switch that forwards frames by priority and, in the same pass, adds up the gradients of
distributed training. Its settings are in /etc/sluice/appliance.toml; start it with
systemctl enable --now sluiced.")
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)

# Only the appliance, in files at their final places: DESTDIR keeps /etc out of the prefix.
set(CPACK_COMPONENTS_ALL appliance)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)

set(CPACK_DEBIAN_APPLIANCE_PACKAGE_NAME sluiced)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
# The linker's needs, and the drivers that DPDK opens by itself, which no linker sees.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_APPLIANCE_PACKAGE_DEPENDS "adduser, python3")  # sluicectl
foreach(driver bus-vdev bus-pci mempool-ring net-vhost net-af-packet net-af-xdp)
  string(APPEND CPACK_DEBIAN_APPLIANCE_PACKAGE_DEPENDS ", librte-${driver}${SLUICE_DPDK_ABI}")
endforeach()
set(CPACK_DEBIAN_APPLIANCE_PACKAGE_RECOMMENDS "librte-meta-net")

# Changed settings survive an upgrade.
set(debian_dir ${PROJECT_BINARY_DIR}/debian)
file(WRITE ${debian_dir}/conffiles "/etc/sluice/appliance.toml\n")
configure_file(cmake/postinst ${debian_dir}/postinst COPYONLY)
file(CHMOD ${debian_dir}/postinst PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
     GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_APPLIANCE_PACKAGE_CONTROL_EXTRA "${debian_dir}/conffiles;${debian_dir}/postinst")
include(CPack)
