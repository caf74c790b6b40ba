# SPDX-License-Identifier: Apache-2.0
# Every third-party library, as an imported target pkg::NAME. tools/packages.txt lists the Debian packages.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_program(PROTOC_C protoc-c REQUIRED)

function(duck_pkg name module)
  pkg_check_modules(${name} REQUIRED IMPORTED_TARGET GLOBAL ${module})
  add_library(pkg::${name} ALIAS PkgConfig::${name})
endfunction()

duck_pkg(jansson jansson)
duck_pkg(pcre2 libpcre2-8)
duck_pkg(utf8proc libutf8proc)
duck_pkg(ck ck)
duck_pkg(xxhash libxxhash)
duck_pkg(sodium libsodium)
duck_pkg(criterion criterion)

# libprotobuf-c's .pc file asks for the C++ runtime's .pc file, which the C runtime does not need.
find_path(PROTOBUF_C_INCLUDE protobuf-c/protobuf-c.h REQUIRED)
find_library(PROTOBUF_C_LIBRARY protobuf-c REQUIRED)
add_library(pkg::protobuf-c INTERFACE IMPORTED GLOBAL)
target_include_directories(pkg::protobuf-c INTERFACE ${PROTOBUF_C_INCLUDE})
target_link_libraries(pkg::protobuf-c INTERFACE ${PROTOBUF_C_LIBRARY})

find_package(nng CONFIG REQUIRED)
add_library(pkg::nng INTERFACE IMPORTED GLOBAL)
target_link_libraries(pkg::nng INTERFACE nng::nng)

# libev has no .pc file.
find_path(EV_INCLUDE ev.h REQUIRED)
find_library(EV_LIBRARY ev REQUIRED)
add_library(pkg::ev INTERFACE IMPORTED GLOBAL)
target_include_directories(pkg::ev INTERFACE ${EV_INCLUDE})
target_link_libraries(pkg::ev INTERFACE ${EV_LIBRARY})

# DPDK is optional: without it unit, kernel, golden and sim tests still build and pass.
option(DUCK_DPDK "Build the DPDK back end of lib/net" ON)
if(DUCK_DPDK)
  pkg_check_modules(dpdk IMPORTED_TARGET GLOBAL libdpdk)
  if(dpdk_FOUND)
    add_library(pkg::dpdk ALIAS PkgConfig::dpdk)
  else()
    message(WARNING "libdpdk not found: building without the DPDK data plane")
    set(DUCK_DPDK OFF)
  endif()
endif()
