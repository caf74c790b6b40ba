# SPDX-License-Identifier: Apache-2.0
# Language level, warnings and sanitizers of every target.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
set(CMAKE_C_FLAGS_RELEASE "-O3")   # asserts are cheap and stay on: no NDEBUG
set(CMAKE_C_FLAGS_MINSIZEREL "-Os")

set(DUCK_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, for example address,undefined")

add_library(duck_flags INTERFACE)
# -ffp-contract=off: a product and a sum are fused only where the code says fma, so that every
# kernel variant, compiler and optimisation level rounds alike.
target_compile_options(duck_flags INTERFACE
  -Wall -Wextra -Werror -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef
  -Wno-unused-parameter -Wno-missing-field-initializers -ffp-contract=off -fno-omit-frame-pointer)
target_compile_definitions(duck_flags INTERFACE _GNU_SOURCE DUCKLLM_VERSION="${PROJECT_VERSION}")
if(DUCK_SANITIZE)
  target_compile_options(duck_flags INTERFACE -fsanitize=${DUCK_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(duck_flags INTERFACE -fsanitize=${DUCK_SANITIZE})
endif()
option(DUCK_FUZZ "Build the fuzz targets with libFuzzer (needs clang)" OFF)
if(DUCK_FUZZ)   # the libraries must be instrumented too, or the fuzzer sees nothing
  target_compile_options(duck_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
