# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The suites of the data tower on the CUDA device whose kernels run on the processor. By default on
# the attention kernels that CMakeLists.txt beside this file selects; on all of them in the long run,
# which compiles them when it starts.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(default ON)
else()
  set(default OFF) # once is enough, and kernels take minutes to compile
endif()
option(PKV_TEST_CUDA_SUITES "Run the suites on CUDA kernels executed by the processor" ${default})
if(NOT PKV_TEST_CUDA_SUITES OR NOT TARGET pkv_simt_library_asan)
  return()
endif()

# The long suites run a part of their cases, another one in each build; all in the long run.
set(shard_of_plain 1/4)
set(shard_of_hook 2/4)

# Processes that end in the middle of a kernel leave memory behind.
set(asan_options ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0)

# pkv_add_cuda_suite(<suite> <build> [<label>...]): without a label it is a program, but no test.
function(pkv_add_cuda_suite suite build)
  cmake_path(GET suite FILENAME name)
  set(name ${name}_cuda_${build})
  set(full "")
  if(build MATCHES "_full$")
    set(full EXCLUDE_FROM_ALL)
  endif()
  add_executable(${name} ${full} ${suite}.c support/test_devices.c)
  target_compile_definitions(${name} PRIVATE TEST_CUDA TEST_SIMT)
  target_include_directories(${name} PRIVATE simt "${PROJECT_SOURCE_DIR}")
  target_include_directories(${name} SYSTEM PRIVATE "${PKV_CUDA_INCLUDE_DIR}")
  target_link_libraries(${name} PRIVATE pkv_simt_library_${build} pkv_test_support
                                        PkgConfig::cmocka)
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  if(NOT ARGN)
    return()
  endif()
  pkv_add_script_test(${name} LABELS ${ARGN} COMMAND ${name})
  if(suite STREQUAL "test_attention" OR suite STREQUAL "test_attention_bitwise")
    if(NOT full)
      set_tests_properties(${name} PROPERTIES ENVIRONMENT "PKV_TEST_SHARD=${shard_of_${build}}")
    endif()
  endif()
  if(full)
    set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED cuda_${build} TIMEOUT 7200
                                            ENVIRONMENT PKV_TEST_FULL=1)
  endif()
endfunction()

foreach(build IN ITEMS plain hook)
  foreach(suite IN ITEMS test_transfer test_attention_write test_attention test_attention_merge
                         simt/test_cuda_device simt/test_cuda_streams)
    pkv_add_cuda_suite(${suite} ${build} unit slow)
  endforeach()
endforeach()
pkv_add_cuda_suite(test_attention_bitwise plain unit slow)
pkv_add_cuda_suite(test_attention_refuse plain unit slow)
pkv_add_cuda_suite(test_attention_merge asan unit slow)
pkv_add_cuda_suite(test_attention asan unit slow)
pkv_add_cuda_suite(simt/test_stream_order plain unit slow)
# A pool beyond 4 GiB of addresses, and each planted mistake where it has to be noticed.
foreach(build IN ITEMS plain hook asan)
  pkv_add_cuda_suite(simt/test_mistakes ${build} unit slow)
  target_sources(test_mistakes_cuda_${build} PRIVATE simt/far_pool.c)
endforeach()

foreach(build IN ITEMS plain_full hook_full)
  pkv_add_script_test(
    build_cuda_${build} LABELS full
    COMMAND ${CMAKE_COMMAND} --build "${PROJECT_BINARY_DIR}" --target test_attention_cuda_${build}
            test_attention_bitwise_cuda_${build})
  set_tests_properties(build_cuda_${build} PROPERTIES FIXTURES_SETUP cuda_${build} TIMEOUT 7200)
  pkv_add_cuda_suite(test_attention ${build} full)
  pkv_add_cuda_suite(test_attention_bitwise ${build} full)
endforeach()
set_tests_properties(test_attention_cuda_asan PROPERTIES ENVIRONMENT
                                                         "${asan_options};PKV_TEST_SHARD=3/16")
foreach(suite IN ITEMS test_attention_merge test_mistakes)
  set_tests_properties(${suite}_cuda_asan PROPERTIES ENVIRONMENT "${asan_options}")
endforeach()
