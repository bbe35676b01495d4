# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The suites of the data tower on the CUDA device whose kernels run on the processor. Off by
# default: the kernels of attention take minutes to compile.
option(PKV_TEST_CUDA_SUITES "Run the suites on CUDA kernels executed by the processor" OFF)
if(NOT PKV_TEST_CUDA_SUITES)
  return()
endif()
if(NOT TARGET pkv_simt_library_plain)
  message(FATAL_ERROR "PKV_TEST_CUDA_SUITES wants the CUDA headers and no PKV_SANITIZE")
endif()

foreach(build IN ITEMS plain hook)
  foreach(suite IN ITEMS test_transfer test_attention_write simt/test_cuda_device)
    cmake_path(GET suite FILENAME name)
    set(name ${name}_cuda_${build})
    add_executable(${name} ${suite}.c support/test_devices.c)
    target_compile_definitions(${name} PRIVATE TEST_CUDA)
    target_include_directories(${name} PRIVATE simt)
    target_include_directories(${name} SYSTEM PRIVATE "${PKV_CUDA_INCLUDE_DIR}")
    target_link_libraries(${name} PRIVATE pkv_simt_library_${build} pkv_test_support
                                          PkgConfig::cmocka)
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
    pkv_add_script_test(${name} LABELS unit slow COMMAND ${name})
  endforeach()
endforeach()
