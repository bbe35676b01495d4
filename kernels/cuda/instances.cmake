# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The translation units of the attention kernels of instances.h, written into the build folder. A
# unit has the kernels of one class and one kind of cache for both types of queries: their machine
# code is so alike that, stored in one piece, two take hardly more room than one; and a third of
# what a kernel by itself would cost the compiler is spent before the kernel.
#
#   pkv_write_attention_units(FOLDER OUT_LIST [NAME...])
#
# With names, as half_half_64 or plain_float, those kernels only, and FOLDER/attention_list.h for
# PKVI_ATTENTION_LIST, which makes a library without the others.
function(pkv_write_attention_units folder out_list)
  set(units "")
  set(listed "")
  set(listed_plain "")
  # Write the unit `name` of the kernels in `text`, if there are any.
  macro(write_unit name text)
    if(NOT "${text}" STREQUAL "")
      file(
        CONFIGURE
        OUTPUT "${folder}/attend_${name}.cu"
        CONTENT "#include \"kernels/cuda/instance.cuh\"\n\n${text}"
        @ONLY)
      list(APPEND units "${folder}/attend_${name}.cu")
    endif()
  endmacro()

  foreach(kind own e4m3 int8)
    foreach(class "64:64,64,false" "128:128,128,false" "192:192,128,false" "256:256,256,false"
                  "latent:576,512,true")
      string(REGEX REPLACE ":.*" "" class_name "${class}")
      string(REGEX REPLACE ".*:" "" sizes "${class}")
      set(large_warps "4, 1")
      if(class_name STREQUAL "latent")
        set(large_warps "4, 2")
      endif()
      set(text "")
      foreach(query half bfloat16)
        set(cache ${kind})
        if(kind STREQUAL "own")
          set(cache ${query})
        endif()
        set(name "${query}_${cache}_${class_name}")
        if(ARGN AND NOT name IN_LIST ARGN)
          continue()
        endif()
        string(APPEND listed " X(${name}_small, ${query}) X(${name}_large, ${query})")
        set(types "${query}, ${cache}, ${sizes}")
        string(APPEND text "PKVI_ATTENTION_UNIT(${name}_small, ${types}, 1, 4)\n")
        string(APPEND text "PKVI_ATTENTION_UNIT(${name}_large, ${types}, ${large_warps})\n")
      endforeach()
      write_unit("${kind}_${class_name}" "${text}")
    endforeach()
  endforeach()
  set(text "")
  foreach(cache float half bfloat16 e4m3 int8)
    if(ARGN AND NOT "plain_${cache}" IN_LIST ARGN)
      continue()
    endif()
    string(APPEND listed_plain " X(plain_${cache}, ${cache})")
    string(APPEND text "PKVI_ATTENTION_PLAIN_UNIT(plain_${cache}, ${cache})\n")
  endforeach()
  write_unit(plain "${text}")
  if(ARGN)
    set(list_text "#define PKVI_ATTENTION_INSTANCES(X)${listed}\n")
    string(APPEND list_text "#define PKVI_ATTENTION_PLAIN_INSTANCES(X)${listed_plain}\n")
    file(
      CONFIGURE
      OUTPUT "${folder}/attention_list.h"
      CONTENT "${list_text}"
      @ONLY)
  endif()
  set(${out_list} "${units}" PARENT_SCOPE)
endfunction()
