# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The CUDA backend: its compiler, its architectures, and an object library of its kernels. The
# library takes the objects and the static runtime; nothing of CUDA shows in its interface.
set(pkv_least_cuda 12.0)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(NOT CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA")
  message(FATAL_ERROR "The CUDA backend is built with nvcc; ${CMAKE_CUDA_COMPILER} is "
                      "${CMAKE_CUDA_COMPILER_ID}")
endif()
foreach(version IN ITEMS ${CMAKE_CUDA_COMPILER_VERSION} ${CUDAToolkit_VERSION})
  if(version VERSION_LESS pkv_least_cuda)
    message(FATAL_ERROR "The CUDA backend needs CUDA ${pkv_least_cuda}, this is ${version}")
  endif()
endforeach()

# What a release holds, as far as this compiler knows it; docs/architecture.md has the figures. Code
# of 80 runs on 86 and 89 as it is, but reading e4m3 has an instruction from 89 on. The PTX is what
# everything newer can start from, which that of a later architecture would not be.
set(pkv_cuda_architectures ${PKV_CUDA_ARCHITECTURES})
set(pkv_cuda_e4m3_options "")
if(NOT pkv_cuda_architectures)
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --list-gpu-arch OUTPUT_VARIABLE known
                  COMMAND_ERROR_IS_FATAL ANY)
  foreach(architecture IN ITEMS 80 90 100 120)
    if(known MATCHES "compute_${architecture}([^0-9]|$)")
      list(APPEND pkv_cuda_architectures ${architecture}-real)
    endif()
  endforeach()
  if(NOT known MATCHES "compute_90([^0-9]|$)")
    message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} does not know compute_90; set "
                        "PKV_CUDA_ARCHITECTURES")
  endif()
  list(APPEND pkv_cuda_architectures 90-virtual)
  # PTX 8.1 has the instruction for 89.
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1)
    set(pkv_cuda_e4m3_options "--generate-code=arch=compute_89,code=[sm_89]")
  endif()
endif()
message(STATUS "CUDA backend: CUDA ${CUDAToolkit_VERSION}, architectures ${pkv_cuda_architectures}")

file(GLOB pkv_cuda_kernels CONFIGURE_DEPENDS kernels/cuda/*.cu)
include(kernels/cuda/instances.cmake)
pkv_write_attention_units("${PROJECT_BINARY_DIR}/cuda" pkv_attention_units)
set(pkv_e4m3_units ${pkv_attention_units})
list(FILTER pkv_e4m3_units INCLUDE REGEX "_(e4m3|plain)")
set_source_files_properties(${pkv_e4m3_units} PROPERTIES COMPILE_OPTIONS "${pkv_cuda_e4m3_options}")
file(GLOB pkv_cuda_hosts CONFIGURE_DEPENDS kernels/cuda/*.c)
add_library(pagedkv_cuda_objects OBJECT ${pkv_cuda_kernels} ${pkv_attention_units})
target_include_directories(
  pagedkv_cuda_objects PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src"
                               "${PROJECT_SOURCE_DIR}")
target_compile_definitions(pagedkv_cuda_objects PRIVATE PKV_BUILDING_LIBRARY)
# Kernels do not spill and have no stack; a user's compiler that sees it otherwise warns. The host
# side is linked into C programs, which do not have what the last two would need.
target_compile_options(
  pagedkv_cuda_objects
  PRIVATE "SHELL:-Xptxas -warn-spills,-warn-lmem-usage" "SHELL:-Xcompiler -Wall,-Wextra"
          "SHELL:-Xcompiler -fno-exceptions,-fno-threadsafe-statics")
if(PKV_WERROR)
  target_compile_options(
    pagedkv_cuda_objects PRIVATE "SHELL:-Xptxas -Werror" "SHELL:-Werror all-warnings"
                                 "SHELL:-Xcompiler -Werror")
endif()
# Line tables, for profilers, make the device code four times as large.
target_compile_options(pagedkv_cuda_objects PRIVATE $<$<CONFIG:Debug,RelWithDebInfo>:-lineinfo>)
# Without it the machine code is stored as it is, and only PTX is compressed.
include(CheckCompilerFlag)
check_compiler_flag(CUDA "--compress-mode=size" PKV_NVCC_COMPRESSES)
if(PKV_NVCC_COMPRESSES)
  target_compile_options(pagedkv_cuda_objects PRIVATE --compress-mode=size)
endif()
set_target_properties(
  pagedkv_cuda_objects
  PROPERTIES CUDA_ARCHITECTURES "${pkv_cuda_architectures}"
             CUDA_STANDARD 17
             CUDA_STANDARD_REQUIRED ON
             CUDA_VISIBILITY_PRESET hidden
             POSITION_INDEPENDENT_CODE ON)

list(APPEND pkv_sources ${pkv_cuda_hosts})
list(FILTER pkv_sources EXCLUDE REGEX "/src/device/cuda_absent\\.c$")
set(pkv_has_cuda ON)
