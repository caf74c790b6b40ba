# SPDX-License-Identifier: Apache-2.0
# duck_library(base SOURCES error.c ... USES pkg::x lib::y [PRIVATE_USES pkg::z])
#   -> static library duck_base, alias lib::base. Its headers are included as "base/error.h"; a target sees
#   only the headers of what it USES, so the build refuses every other dependency. PRIVATE_USES are not passed on.
function(duck_library name)
  cmake_parse_arguments(A "" "" "SOURCES;USES;PRIVATE_USES" ${ARGN})
  add_library(duck_${name} STATIC ${A_SOURCES})
  add_library(lib::${name} ALIAS duck_${name})
  duck_export_headers(duck_${name} ${name} ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(duck_${name} PUBLIC ${A_USES} PRIVATE duck_flags ${A_PRIVATE_USES})
endfunction()

# Makes the folder DIR visible as "<prefix>/..." through a link in the build tree, and nothing beside it.
function(duck_export_headers target prefix dir)
  set(root ${CMAKE_BINARY_DIR}/include/${target})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${dir} ${root}/${prefix} SYMBOLIC)
  target_include_directories(${target} PUBLIC ${root})
endfunction()

# duck_program(duck-firmware CORE duck_core SOURCES ... USES ...): library <core> + main.c as the program.
function(duck_program name)
  cmake_parse_arguments(A "" "CORE" "SOURCES;USES" ${ARGN})
  add_library(${A_CORE} STATIC ${A_SOURCES})
  duck_export_headers(${A_CORE} ${name} ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(${A_CORE} PUBLIC ${A_USES} PRIVATE duck_flags)
  add_executable(${name} main.c)
  target_link_libraries(${name} PRIVATE ${A_CORE} duck_flags)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endfunction()

# duck_test(test_error SOURCES test_error.c USES lib::base [LABELS unit] [TIMEOUT s]): a Criterion test program.
# Criterion brings libnanomsg, whose nn_* names libnng exports too: nanomsg must be found first.
function(duck_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;USES;LABELS;ENVIRONMENT" ${ARGN})
  if(DUCK_SANITIZE MATCHES thread)   # Criterion cannot start there: a stand-in with the same macros
    add_executable(${name} ${A_SOURCES} ${PROJECT_SOURCE_DIR}/tests/tsan/tsan_main.c)
    target_include_directories(${name} BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tests/tsan)
    target_link_libraries(${name} PRIVATE m ${A_USES} duck_flags)
  else()
    add_executable(${name} ${A_SOURCES})
    target_link_libraries(${name} PRIVATE pkg::criterion ${A_USES} duck_flags)
    # Named first and kept although the test itself calls none of it: Criterion does.
    target_link_options(${name} PRIVATE LINKER:--push-state,--no-as-needed,-lnanomsg,--pop-state)
  endif()
  target_compile_definitions(${name} PRIVATE
    FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures" BIN_DIR="${CMAKE_BINARY_DIR}/bin")
  add_test(NAME ${name} COMMAND ${name} --jobs 1)
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT} ENVIRONMENT "${A_ENVIRONMENT}")
endfunction()

# duck_fuzz(fuzz_packet SOURCES fuzz_packet.c USES lib::transport [MUTATIONS n]): a decoder's fuzz target. As a test it replays
# tests/fuzz/corpus/<name> and seeded mutations of it; with -DDUCK_FUZZ=ON (clang) it is a libFuzzer program.
function(duck_fuzz name)
  cmake_parse_arguments(A "" "MUTATIONS" "SOURCES;USES" ${ARGN})
  if(NOT A_MUTATIONS)
    set(A_MUTATIONS 2000)
  endif()
  if(DUCK_FUZZ)
    add_executable(${name} ${A_SOURCES})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    add_executable(${name} ${A_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz/replay_main.c)
    add_test(NAME ${name} COMMAND ${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name} ${A_MUTATIONS})
    set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 300)
  endif()
  target_link_libraries(${name} PRIVATE ${A_USES} duck_flags)
endfunction()
