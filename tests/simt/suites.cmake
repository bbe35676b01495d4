# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The suites of the data tower on the CUDA device whose kernels run on the processor. By default on
# the attention kernels that CMakeLists.txt beside this file selects, in several orders of threads;
# on all of them in the long run, which compiles them when it starts.
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
set(shard_of_test_attention_plain 1/4)
set(shard_of_test_attention_hook 2/4)
set(shard_of_test_attention_asan 3/16)
set(shard_of_test_attention_write_asan 1/5)
set(shard_of_test_attention_bitwise_plain 1/2)
set(shard_of_gpu_instances_hook 2/11)
set(shard_of_gpu_instances_asan 4/19)

# pkv_add_cuda_run(<test> <program> LABELS <label>... [ENVIRONMENT <name=value>...])
function(pkv_add_cuda_run test program)
  cmake_parse_arguments(PARSE_ARGV 2 run "" "" "LABELS;ENVIRONMENT")
  if(program MATCHES "_asan$")
    # Processes that end in the middle of a kernel leave memory behind.
    list(APPEND run_ENVIRONMENT ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0)
  endif()
  pkv_add_script_test(${test} LABELS ${run_LABELS} COMMAND ${program})
  set_tests_properties(${test} PROPERTIES ENVIRONMENT "${run_ENVIRONMENT}")
endfunction()

# pkv_add_cuda_suite(<suite> <build> [<label>...]): the program <name>_cuda_<build>, and its test
# where it has labels.
function(pkv_add_cuda_suite suite build)
  cmake_path(GET suite FILENAME suite_name)
  set(name ${suite_name}_cuda_${build})
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
  if(NOT build MATCHES "^plain")
    # Accesses are watched: those of memory that is nobody's, too.
    target_sources(${name} PRIVATE simt/foreign_blocks.c)
    target_link_options(${name} PRIVATE -Wl,--wrap=attention_run_execute)
  endif()
  if(full)
    target_compile_definitions(${name} PRIVATE TEST_ALL_KERNELS)
    pkv_add_cuda_run(${name} ${name} LABELS ${ARGN} ENVIRONMENT PKV_TEST_FULL=1)
    set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED cuda_${build} TIMEOUT 7200)
  elseif(ARGN AND DEFINED shard_of_${suite_name}_${build})
    pkv_add_cuda_run(${name} ${name} LABELS ${ARGN}
                     ENVIRONMENT PKV_TEST_SHARD=${shard_of_${suite_name}_${build}})
  elseif(ARGN)
    pkv_add_cuda_run(${name} ${name} LABELS ${ARGN})
  endif()
endfunction()

set(small_suites test_transfer test_attention_write test_attention_merge)
foreach(build IN ITEMS plain hook)
  foreach(suite IN LISTS small_suites)
    pkv_add_cuda_suite(${suite} ${build} unit slow)
  endforeach()
  foreach(suite IN ITEMS test_attention simt/test_cuda_device simt/test_cuda_streams)
    pkv_add_cuda_suite(${suite} ${build} unit slow)
  endforeach()
endforeach()
foreach(suite IN ITEMS test_attention_bitwise test_attention_steps test_attention_refuse)
  pkv_add_cuda_suite(${suite} plain unit slow)
endforeach()
foreach(suite IN LISTS small_suites)
  pkv_add_cuda_suite(${suite} asan unit slow)
endforeach()
pkv_add_cuda_suite(test_attention asan unit slow)
pkv_add_cuda_suite(gpu/gpu_instances hook unit slow)
pkv_add_cuda_suite(gpu/gpu_instances asan unit slow)
pkv_add_cuda_suite(simt/test_stream_order plain unit slow)
# A pool beyond 4 GiB of addresses, and each planted mistake where it has to be noticed.
foreach(build IN ITEMS plain hook asan)
  pkv_add_cuda_suite(simt/test_mistakes ${build} unit slow)
  target_sources(test_mistakes_cuda_${build} PRIVATE simt/far_pool.c)
endforeach()

# Running twice, and the composition and order of a batch.
pkv_add_cuda_run(test_attention_bitwise_cuda_batch test_attention_bitwise_cuda_plain
                 LABELS unit slow ENVIRONMENT PKV_TEST_SHARD=0/10)

# The same programs, a part of what is long, with threads and blocks in other orders.
set(order_reversed plain PKV_SIMT_REVERSE=1)
set(order_seeded plain PKV_SIMT_SEED=1)
set(order_preempted hook PKV_SIMT_SEED=2 PKV_SIMT_PREEMPT=4)
set(shard_test_attention_reversed 3/32)
set(shard_test_attention_seeded 7/32)
set(shard_test_attention_preempted 13/16)
set(shard_test_attention_write_reversed 2/7)
set(shard_test_attention_write_seeded 3/7)
set(shard_test_attention_write_preempted 4/7)
foreach(order IN ITEMS reversed seeded preempted)
  foreach(suite IN ITEMS test_transfer test_attention_write test_attention_merge test_attention)
    set(environment ${order_${order}})
    list(POP_FRONT environment build)
    if(DEFINED shard_${suite}_${order})
      list(APPEND environment PKV_TEST_SHARD=${shard_${suite}_${order}})
    endif()
    pkv_add_cuda_run(${suite}_cuda_${order} ${suite}_cuda_${build} LABELS unit slow
                     ENVIRONMENT ${environment})
  endforeach()
endforeach()

# Everything, on all kernels.
set(full_suites test_attention test_attention_bitwise test_attention_steps simt/test_long_keys
                gpu/gpu_instances)
foreach(build IN ITEMS plain_full hook_full)
  set(programs "")
  foreach(suite IN LISTS full_suites)
    pkv_add_cuda_suite(${suite} ${build} full)
    cmake_path(GET suite FILENAME suite_name)
    list(APPEND programs ${suite_name}_cuda_${build})
  endforeach()
  pkv_add_script_test(
    build_cuda_${build} LABELS full
    COMMAND ${CMAKE_COMMAND} --build "${PROJECT_BINARY_DIR}" --target ${programs})
  set_tests_properties(build_cuda_${build} PROPERTIES FIXTURES_SETUP cuda_${build} TIMEOUT 7200)
endforeach()
