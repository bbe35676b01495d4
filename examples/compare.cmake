# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Runs PROGRAM and compares what it prints with the file EXPECTED:
#   cmake -D PROGRAM=... -D EXPECTED=... -P compare.cmake
# A program that ends with 77 cannot run here and says why in a line "skipped: ...".
execute_process(
  COMMAND "${PROGRAM}"
  OUTPUT_VARIABLE actual
  ERROR_VARIABLE errors
  RESULT_VARIABLE result)
file(READ "${EXPECTED}" expected)

if(result EQUAL 77)
  message(STATUS "\n${errors}")
  return()
endif()
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} ended with ${result}\n${errors}${actual}")
endif()
if(NOT actual STREQUAL expected)
  message(FATAL_ERROR "${PROGRAM} printed\n${actual}\ninstead of (${EXPECTED})\n${expected}")
endif()
