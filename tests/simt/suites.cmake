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
if(NOT PKV_TEST_CUDA_SUITES OR NOT TARGET pkv_simt_library_plain)
  return()
endif()

# The long suites run a part of their cases, another one in each build; all in the long run.
set(shard_of_plain 1/4)
set(shard_of_hook 2/4)

# pkv_add_cuda_suite(<suite> <build> [<label>...]): without a label it is a program, but no test.
function(pkv_add_cuda_suite suite build)
  cmake_path(GET suite FILENAME name)
  set(name ${name}_cuda_${build})
  set(full "")
  if(build MATCHES "_full$|^bug_")
    set(full EXCLUDE_FROM_ALL)
  endif()
  add_executable(${name} ${full} ${suite}.c support/test_devices.c)
  target_compile_definitions(${name} PRIVATE TEST_CUDA TEST_SIMT)
  target_include_directories(${name} PRIVATE simt)
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
    set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED cuda_${build} TIMEOUT 7200)
  endif()
endfunction()

foreach(build IN ITEMS plain hook)
  foreach(suite IN ITEMS test_transfer test_attention_write test_attention test_attention_merge
                         simt/test_cuda_device)
    pkv_add_cuda_suite(${suite} ${build} unit slow)
  endforeach()
endforeach()
pkv_add_cuda_suite(test_attention_bitwise plain unit slow)
pkv_add_cuda_suite(test_attention_refuse plain unit slow)
pkv_add_cuda_suite(test_attention_merge asan unit slow)
pkv_add_cuda_suite(test_attention asan unit slow)

foreach(build IN ITEMS plain_full hook_full)
  pkv_add_script_test(
    build_cuda_${build} LABELS full
    COMMAND ${CMAKE_COMMAND} --build "${PROJECT_BINARY_DIR}" --target test_attention_cuda_${build}
            test_attention_bitwise_cuda_${build})
  set_tests_properties(build_cuda_${build} PROPERTIES FIXTURES_SETUP cuda_${build} TIMEOUT 7200)
  pkv_add_cuda_suite(test_attention ${build} full)
  pkv_add_cuda_suite(test_attention_bitwise ${build} full)
endforeach()
# Processes that end in the middle of a kernel leave memory behind.
set_tests_properties(
  test_attention_cuda_asan
  PROPERTIES ENVIRONMENT
             "ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0;PKV_TEST_SHARD=3/16")
set_tests_properties(
  test_attention_merge_cuda_asan
  PROPERTIES ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0")

# Each of these planted mistakes must make the suite fail; the same kernels pass in the hook build.
foreach(bug IN ITEMS 1 2 4 5 6 7 8 9 10)
  pkv_add_script_test(
    build_cuda_bug_${bug} LABELS full
    COMMAND ${CMAKE_COMMAND} --build "${PROJECT_BINARY_DIR}" --target test_attention_cuda_bug_${bug})
  set_tests_properties(build_cuda_bug_${bug} PROPERTIES FIXTURES_SETUP cuda_bug_${bug} TIMEOUT 1800)
  pkv_add_cuda_suite(test_attention bug_${bug})
  pkv_add_script_test(
    test_attention_cuda_bug_${bug}_is_found LABELS full
    COMMAND sh -c "test -x \"$1\" || exit 1; if \"$1\" >/dev/null 2>&1; then exit 1; fi" sh
            $<TARGET_FILE:test_attention_cuda_bug_${bug}>)
  set_tests_properties(test_attention_cuda_bug_${bug}_is_found
                       PROPERTIES FIXTURES_REQUIRED cuda_bug_${bug} TIMEOUT 1800)
endforeach()
