# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Install rules. Three components, so that a distribution can split them: `headers` (headers and
# the package files), `static`, `shared`. The package works with either library or with both: each
# has an export set of its own and pagedkvConfig.cmake takes what is there.
include(CMakePackageConfigHelpers)

set(pkv_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/pagedkv")

install(DIRECTORY include/ DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT headers
        FILES_MATCHING PATTERN "*.h")
install(TARGETS pagedkv_static EXPORT pagedkv-static COMPONENT static)
install(TARGETS pagedkv_shared EXPORT pagedkv-shared COMPONENT shared)
foreach(name static shared)
  install(EXPORT pagedkv-${name} NAMESPACE pagedkv:: FILE pagedkv-${name}.cmake
          DESTINATION "${pkv_package_dir}" COMPONENT ${name})
endforeach()

configure_package_config_file(
  cmake/pagedkvConfig.cmake.in "${PROJECT_BINARY_DIR}/pagedkvConfig.cmake"
  INSTALL_DESTINATION "${pkv_package_dir}")
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/pagedkvConfigVersion.cmake" COMPATIBILITY SameMinorVersion)

# The .pc file finds its prefix from its own place, so that an installed tree may be moved.
set(pkv_pc_prefix "${CMAKE_INSTALL_PREFIX}")
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH pkv_pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" pkv_pc_prefix "\${pcfiledir}/${pkv_pc_prefix}")
endif()
set(pkv_pc_libdir "\${prefix}")
set(pkv_pc_includedir "\${prefix}")
cmake_path(APPEND pkv_pc_libdir "${CMAKE_INSTALL_LIBDIR}")
cmake_path(APPEND pkv_pc_includedir "${CMAKE_INSTALL_INCLUDEDIR}")
set(pkv_pc_private_libraries "")
if(pkv_has_threads)
  set(pkv_pc_private_libraries "-pthread -lm")
endif()
if(pkv_has_cuda)
  list(GET CUDAToolkit_LIBRARY_DIR 0 pkv_cuda_library_dir)
  string(APPEND pkv_pc_private_libraries " -L${pkv_cuda_library_dir} -lcudart_static -ldl -lrt")
endif()
configure_file(cmake/pagedkv.pc.in "${PROJECT_BINARY_DIR}/pagedkv.pc" @ONLY)

install(FILES "${PROJECT_BINARY_DIR}/pagedkvConfig.cmake"
              "${PROJECT_BINARY_DIR}/pagedkvConfigVersion.cmake"
        DESTINATION "${pkv_package_dir}" COMPONENT headers)
install(FILES "${PROJECT_BINARY_DIR}/pagedkv.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT headers)
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT headers)
