# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The translation units of the attention kernels of instances.h, written into the build folder: the
# two kernels of a pair of types and a class share one, since half of what a unit costs is spent
# before its first kernel.
#
#   pkv_write_attention_units(FOLDER OUT_LIST [NAME...])
#
# With names, as half_half_64 or plain_float, those kernels only, and FOLDER/attention_list.h for
# PKVI_ATTENTION_LIST, which makes a library without the others.
function(pkv_write_attention_units folder out_list)
  set(units "")
  set(listed "")
  set(listed_plain "")
  macro(write_unit name text)
    set(unit "${folder}/attend_${name}.cu")
    file(
      CONFIGURE
      OUTPUT "${unit}"
      CONTENT "#include \"kernels/cuda/instance.cuh\"\n\n${text}\n"
      @ONLY)
    list(APPEND units "${unit}")
  endmacro()

  foreach(types half:half half:e4m3 half:int8 bfloat16:bfloat16 bfloat16:e4m3 bfloat16:int8)
    string(REPLACE ":" ";" pair "${types}")
    list(GET pair 0 query)
    list(GET pair 1 cache)
    foreach(class "64:64,64,false" "128:128,128,false" "192:192,128,false" "256:256,256,false"
                  "latent:576,512,true")
      string(REGEX REPLACE ":.*" "" class_name "${class}")
      string(REGEX REPLACE ".*:" "" sizes "${class}")
      set(large_warps "4, 1")
      if(class_name STREQUAL "latent")
        set(large_warps "4, 2")
      endif()
      set(name "${query}_${cache}_${class_name}")
      if(ARGN AND NOT name IN_LIST ARGN)
        continue()
      endif()
      string(APPEND listed " X(${name}_small, ${query}) X(${name}_large, ${query})")
      set(small "PKVI_ATTENTION_UNIT(${name}_small, ${query}, ${cache}, ${sizes}, 1, 4)")
      set(large "PKVI_ATTENTION_UNIT(${name}_large, ${query}, ${cache}, ${sizes}, ${large_warps})")
      write_unit("${name}" "${small}\n${large}")
    endforeach()
  endforeach()
  foreach(cache float half bfloat16 e4m3 int8)
    if(ARGN AND NOT "plain_${cache}" IN_LIST ARGN)
      continue()
    endif()
    string(APPEND listed_plain " X(plain_${cache}, ${cache})")
    write_unit("plain_${cache}" "PKVI_ATTENTION_PLAIN_UNIT(plain_${cache}, ${cache})")
  endforeach()
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
