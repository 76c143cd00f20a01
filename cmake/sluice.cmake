# The two shapes that every folder uses: a library with its dependencies, and a test that ctest
# runs.

find_package(Threads REQUIRED)

add_library(sluice_warnings INTERFACE)
target_compile_options(sluice_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wno-missing-field-initializers -Wno-address-of-packed-member)
# GCC 12 sees overlapping copies in every `"text" + std::to_string(x)`.
target_compile_options(sluice_warnings INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)

# DPDK and other packages are not instrumented, so `sluiced` itself is no subject: what can be is
# collected by sluice_sanitizable, and `./run test --sanitize KIND` builds and runs it.
set(SLUICE_SANITIZE "" CACHE STRING "Sanitizer to build with: address (and undefined) or thread")
set_property(CACHE SLUICE_SANITIZE PROPERTY STRINGS "" address thread)
if(SLUICE_SANITIZE STREQUAL "address")
  set(sanitizers address,undefined)
elseif(SLUICE_SANITIZE STREQUAL "thread")
  set(sanitizers thread)
elseif(SLUICE_SANITIZE)
  message(FATAL_ERROR "SLUICE_SANITIZE is ${SLUICE_SANITIZE}, not address or thread")
endif()
option(SLUICE_LIBFUZZER "With the address sanitizer: fuzz targets for libFuzzer (needs clang)" OFF)
if(SLUICE_LIBFUZZER)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "SLUICE_LIBFUZZER needs clang++, not ${CMAKE_CXX_COMPILER}")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(SLUICE_SANITIZE)
  add_compile_options(-O1 -g1 -fno-omit-frame-pointer -fsanitize=${sanitizers}
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${sanitizers})
endif()
add_custom_target(sluice_sanitizable)
# What the tests of `./run test quick` need.
add_custom_target(sluice_quick)

# The packet path's libraries carry code for both: to be linked as it is, and to be optimized across
# libraries in the programs that ask for it with sluice_optimize_link(). All others are linked as
# usual: it would take each of the tests ten seconds.
set(SLUICE_AT_LINK
    $<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>,$<NOT:$<BOOL:${SLUICE_SANITIZE}>>>)
add_link_options(
  $<${SLUICE_AT_LINK}:$<IF:$<BOOL:$<TARGET_PROPERTY:OPTIMIZED>>,-flto=auto,-fno-lto>>)
# There GCC 12 sees copies without end in `"text" + std::to_string(x)`.
function(sluice_optimize_link target)
  set_target_properties(${target} PROPERTIES OPTIMIZED ON)
  target_link_options(${target} PRIVATE $<${SLUICE_AT_LINK}:-Wno-stringop-overflow>)
  target_compile_options(${target} PRIVATE $<${SLUICE_AT_LINK}:-flto>)
endfunction()

# A folder includes what its target links, and nothing else: every target exports a folder of links
# to its own headers, under their paths from the top of the repository, instead of the repository.
# So an include against the floors does not compile (tests/unit/style/stray_include_test.py).

# sluice_header_root(OUT NAME FOLDER PATTERN...): sets OUT to a folder to search that holds those
# files of FOLDER (from the top) that fit, and nothing else. NAME tells it from other such folders.
function(sluice_header_root out name folder)
  set(root ${PROJECT_BINARY_DIR}/include/${name})
  set(${out} ${root} PARENT_SCOPE)
  get_property(made GLOBAL PROPERTY ${root})
  if(made)
    return()
  endif()
  set_property(GLOBAL PROPERTY ${root} TRUE)
  list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/${folder}/ OUTPUT_VARIABLE patterns)
  file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${patterns})
  file(REMOVE_RECURSE ${root})  # a header that is gone must not stay visible
  foreach(header ${headers})
    get_filename_component(place ${root}/${header} DIRECTORY)
    file(MAKE_DIRECTORY ${place})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${header} ${root}/${header} SYMBOLIC)
  endforeach()
endfunction()

# sluice_sees(TARGET FOLDER...): a test or bench sees the headers of these folders and those below.
function(sluice_sees target)
  foreach(folder ${ARGN})
    string(REPLACE / _ name folder_${folder})
    sluice_header_root(root ${name} ${folder} *.h */*.h */*/*.h)
    target_include_directories(${target} PRIVATE ${root})
  endforeach()
endfunction()

# sluice_library(NAME [CHECKED] [PACKET_PATH] [SOURCES file...] [HEADERS pattern...]
#                [DEPS target...] [PRIVATE_DEPS target...])
# A static library, or an interface library when there are no sources. Who links it may include its
# HEADERS (default: all of its folder) and those of DEPS; those of PRIVATE_DEPS only it may include.
# CHECKED: also NAME_checked, the same with every DCHECK on in all build types, over the checked of
# DEPS; for the simulator and the tests. Who links both kinds is refused.
# PACKET_PATH: see sluice_optimize_link().
function(sluice_library name)
  cmake_parse_arguments(ARG "CHECKED;PACKET_PATH" "" "SOURCES;HEADERS;DEPS;PRIVATE_DEPS" ${ARGN})
  if(NOT ARG_HEADERS)
    set(ARG_HEADERS *.h)
  endif()
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  sluice_header_root(root ${name} ${folder} ${ARG_HEADERS})
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES})
    target_include_directories(${name} PUBLIC ${root})
    target_compile_options(${name} PRIVATE -ffp-contract=off)
    target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} sluice_warnings)
    if(ARG_PACKET_PATH)
      target_compile_options(${name} PRIVATE
        $<${SLUICE_AT_LINK}:-flto> $<${SLUICE_AT_LINK}:-ffat-lto-objects>)
    endif()
    if(ARG_CHECKED)
      set(deps)
      foreach(dep ${ARG_DEPS})  # some of them are declared later
        list(APPEND deps $<IF:$<TARGET_EXISTS:${dep}_checked>,${dep}_checked,${dep}>)
      endforeach()
      add_library(${name}_checked STATIC EXCLUDE_FROM_ALL ${ARG_SOURCES})
      target_compile_options(${name}_checked PUBLIC -UNDEBUG)
      target_include_directories(${name}_checked PUBLIC ${root})
      target_compile_options(${name}_checked PRIVATE -ffp-contract=off)
      target_link_libraries(${name}_checked PUBLIC ${deps}
                                            PRIVATE ${ARG_PRIVATE_DEPS} sluice_warnings)
      set_target_properties(${name} ${name}_checked PROPERTIES
                            COMPATIBLE_INTERFACE_STRING SLUICE_DCHECKS)
      set_target_properties(${name} PROPERTIES INTERFACE_SLUICE_DCHECKS off)
      set_target_properties(${name}_checked PROPERTIES INTERFACE_SLUICE_DCHECKS on)
    endif()
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${root})
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# GoogleTest's headers are parsed once for all tests of a kind, with DCHECKs and without: half of
# what compiling a test takes. `run` turns that off where there is ccache, which can't keep it.
function(sluice_test_headers name)
  if(NOT TARGET ${name})
    set(empty ${PROJECT_BINARY_DIR}/${name}.cc)
    file(CONFIGURE OUTPUT ${empty} CONTENT "")  # once
    add_executable(${name} EXCLUDE_FROM_ALL ${empty})  # compiled as a test is, or it isn't taken
    target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
    target_link_libraries(${name} PRIVATE GTest::gmock GTest::gtest_main Threads::Threads
                                          sluice_warnings)
    target_compile_options(${name} PRIVATE ${ARGN})
  endif()
endfunction()

# sluice_test(NAME SOURCES file... [DEPS target...] [LABELS label...])
# A GoogleTest program, registered with ctest as one test. What is labelled `simulation` instead of
# `unit` runs long in one thread under fake time: the thread sanitizer has nothing to find there.
function(sluice_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LABELS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${name} ${ARG_SOURCES})
  sluice_sees(${name} tests)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main Threads::Threads
                                        sluice_warnings)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" PROCESSORS 2)
  # Compiled in two thirds of the time; what takes long is in the libraries.
  set(options $<$<CONFIG:Release>:-O1>)
  target_compile_options(${name} PRIVATE ${options})
  if(ARG_DEPS MATCHES "_checked|_sim")
    sluice_test_headers(sluice_test_headers_checked ${options} -UNDEBUG)
    target_precompile_headers(${name} REUSE_FROM sluice_test_headers_checked)
  else()
    sluice_test_headers(sluice_test_headers ${options})
    target_precompile_headers(${name} REUSE_FROM sluice_test_headers)
  endif()
  if("unit" IN_LIST ARG_LABELS OR "packets" IN_LIST ARG_LABELS)
    add_dependencies(sluice_quick ${name})
  endif()
  if("unit" IN_LIST ARG_LABELS OR "simulation" IN_LIST ARG_LABELS)
    add_dependencies(sluice_sanitizable ${name})
  endif()
endfunction()
