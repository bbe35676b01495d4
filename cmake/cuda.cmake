# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The CUDA backend: its compiler, its architectures, and an object library of its kernels. The
# library takes the objects and the static runtime; nothing of CUDA shows in its interface.
enable_language(CUDA)
find_package(CUDAToolkit 12.0 REQUIRED)

# What a release holds, as far as this compiler knows it. PTX of the last one serves what is newer.
set(pkv_cuda_architectures ${PKV_CUDA_ARCHITECTURES})
if(NOT pkv_cuda_architectures)
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --list-gpu-arch OUTPUT_VARIABLE known
                  RESULT_VARIABLE failed)
  foreach(architecture IN ITEMS 80 86 89 90 100 120)
    if(known MATCHES "compute_${architecture}([^0-9]|$)")
      list(APPEND pkv_cuda_architectures ${architecture}-real)
      set(last ${architecture})
    endif()
  endforeach()
  if(failed OR NOT pkv_cuda_architectures)
    message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} lists none of the architectures 80 to 120; "
                        "set PKV_CUDA_ARCHITECTURES")
  endif()
  list(APPEND pkv_cuda_architectures ${last}-virtual)
endif()
message(STATUS "CUDA backend: CUDA ${CUDAToolkit_VERSION}, architectures ${pkv_cuda_architectures}")

file(GLOB pkv_cuda_kernels CONFIGURE_DEPENDS kernels/cuda/*.cu)
include(kernels/cuda/instances.cmake)
pkv_write_attention_units("${PROJECT_BINARY_DIR}/cuda" pkv_attention_units)
file(GLOB pkv_cuda_hosts CONFIGURE_DEPENDS kernels/cuda/*.c)
add_library(pagedkv_cuda_objects OBJECT ${pkv_cuda_kernels} ${pkv_attention_units})
target_include_directories(
  pagedkv_cuda_objects PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src"
                               "${PROJECT_SOURCE_DIR}")
target_compile_definitions(pagedkv_cuda_objects PRIVATE PKV_BUILDING_LIBRARY)
# A kernel that spills or has a stack is an error: growing the stack would wait for the device.
target_compile_options(
  pagedkv_cuda_objects PRIVATE "SHELL:-Xptxas -warn-spills,-warn-lmem-usage,-Werror" -lineinfo
                               "SHELL:-Xcompiler -Wall,-Wextra")
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
