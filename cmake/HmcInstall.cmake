# What `cmake --install` and the wheel carry: libhmc.so, headers, and a CMake package for find_package(hmc CONFIG REQUIRED).
include(CMakePackageConfigHelpers)

if(SKBUILD)
  # Inside the wheel everything lives in the package, so that `hmc --cmakedir` and `--includedir` can point at it.
  set(HMC_LIB_DIR hmc/lib)
  set(HMC_INCLUDE_DIR hmc/include)
else()
  set(HMC_LIB_DIR ${CMAKE_INSTALL_LIBDIR})
  set(HMC_INCLUDE_DIR ${CMAKE_INSTALL_INCLUDEDIR})
endif()
set(HMC_CMAKE_DIR ${HMC_LIB_DIR}/cmake/hmc)

if(SKBUILD)
  # A wheel cannot hold symbolic links: one file under the name that programs link and load.
  set_property(TARGET hmc PROPERTY VERSION)
  set_property(TARGET hmc PROPERTY SOVERSION)
endif()

install(TARGETS hmc EXPORT hmcTargets LIBRARY DESTINATION ${HMC_LIB_DIR} INCLUDES DESTINATION ${HMC_INCLUDE_DIR})
install(DIRECTORY cpp/include/hmc DESTINATION ${HMC_INCLUDE_DIR})
install(EXPORT hmcTargets NAMESPACE hmc:: DESTINATION ${HMC_CMAKE_DIR})
configure_package_config_file(cmake/hmcConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/hmcConfig.cmake INSTALL_DESTINATION ${HMC_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/hmcConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/hmcConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/hmcConfigVersion.cmake DESTINATION ${HMC_CMAKE_DIR})
