# How the source tree becomes libraries: one per layer, one per transport folder, and the generated tables.

include(CheckIncludeFileCXX)

# What nearly every file includes, parsed once: half of the time that a file takes to compile. Not in the preset dev, so that each file
# goes on including what it needs.
set(HMC_COMMON_HEADERS <algorithm> <array> <atomic> <chrono> <condition_variable> <cstring> <deque> <functional> <map> <memory> <mutex>
    <optional> <random> <span> <string> <string_view> <thread> <unordered_map> <utility> <vector>)

# hmc_precompile(target flavour [headers...]): the common headers and these. The first target of each `flavour`, whose compiler flags all of it
# share, makes the file, the others use it.
function(hmc_precompile target flavour)
  if(NOT HMC_PRECOMPILE)
    return()
  endif()
  get_property(first GLOBAL PROPERTY HMC_PRECOMPILED_${flavour})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${HMC_COMMON_HEADERS} ${ARGN})
    set_property(GLOBAL PROPERTY HMC_PRECOMPILED_${flavour} ${target})
  endif()
  # A compiler cache takes the same file for the same file only without this.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>)
endfunction()

# hmc_unity(target [files that are compiled alone...]): its files in batches of twelve, each compiled as one: most of what a file takes to
# compile are the headers. A file whose unnamed namespace has names of another file's in the same library is compiled alone.
function(hmc_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${HMC_UNITY} UNITY_BUILD_BATCH_SIZE 12)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# In cpp/src; "redefinition" in a unity_N_cxx.cxx means that a file belongs here. The device layer's files are alike: each is a table.
set(HMC_COMPILED_ALONE collective/member.cc collective/member_collectives.cc comm/topology/text.cc
    progress/interrupt.cc transport/ipc/messages.cc transport/ipc/region.cc)

function(hmc_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
                                           -Woverloaded-virtual -Wsuggest-override -Wimplicit-fallthrough -Wswitch $<$<BOOL:${HMC_WERROR}>:-Werror>)
  # GCC 12 sees overlaps that are not there in std::string's operator+ (its bug 105651).
  target_compile_options(${target} PRIVATE $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
  if(HMC_SANITIZE)
    # The check of dynamic types opens a pipe for each type that is new to it, and reports the object where descriptors have run out,
    # which tests make happen.
    target_compile_options(${target} PRIVATE -fsanitize=${HMC_SANITIZE} -fno-sanitize=vptr -fno-omit-frame-pointer -g1 -O1)
    target_link_options(${target} PRIVATE -fsanitize=${HMC_SANITIZE})
  endif()
endfunction()

# Lets libFuzzer see which of the target's code an input reaches. It makes compiling a quarter slower, and the code.
function(hmc_show_to_fuzzers target)
  if(HMC_BUILD_FUZZERS)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()
# A layer of tables and kernels, of which these files alone read what a peer sends.
set(HMC_NOT_FUZZED device)
set(HMC_FUZZED_FILES device/device.cc device/accelerator_sharing.cc device/accelerator_chunks.cc)

# hmc_layer(name [ROOMS] [DEPENDS layers...] [SOURCE_DIR dir] [ONLY files...] [NOT files...]): every .cc of cpp/src/<name> (or of them
# ONLY some, or all but some), with ROOMS those of its folders too, as library hmc_<name>.
function(hmc_layer name)
  cmake_parse_arguments(ARG "ROOMS" "SOURCE_DIR" "DEPENDS;ONLY;NOT" ${ARGN})
  if(NOT ARG_SOURCE_DIR)
    set(ARG_SOURCE_DIR "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src/${name}")
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${ARG_SOURCE_DIR}/*.cc")
  if(ARG_ROOMS)
    file(GLOB rooms CONFIGURE_DEPENDS "${ARG_SOURCE_DIR}/*/*.cc")
    list(APPEND sources ${rooms})
  endif()
  if(ARG_ONLY)
    list(TRANSFORM ARG_ONLY PREPEND "${ARG_SOURCE_DIR}/" OUTPUT_VARIABLE sources)
  endif()
  list(TRANSFORM ARG_NOT PREPEND "${ARG_SOURCE_DIR}/")
  list(REMOVE_ITEM sources ${ARG_NOT})
  if(NOT sources)  # headers only
    set(sources "${CMAKE_CURRENT_BINARY_DIR}/generated/no_sources.cc")
    hmc_write_if_changed("${sources}" "// A layer of headers only.\n")
  endif()
  add_library(hmc_${name} STATIC ${sources})
  set_target_properties(hmc_${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(hmc_${name} PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}/cpp/include" "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src")
  target_compile_definitions(hmc_${name} PRIVATE HMC_VERSION_TEXT="${PROJECT_VERSION}")
  hmc_compile_options(hmc_${name})
  if(HMC_BUILD_FUZZERS AND name IN_LIST HMC_NOT_FUZZED)
    hmc_precompile(hmc_${name} library_not_fuzzed)
    list(TRANSFORM HMC_FUZZED_FILES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src/" OUTPUT_VARIABLE fuzzed)
    set_property(SOURCE ${fuzzed} APPEND PROPERTY COMPILE_OPTIONS -fsanitize=fuzzer-no-link)
    set_property(SOURCE ${fuzzed} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  else()
    hmc_show_to_fuzzers(hmc_${name})
    hmc_precompile(hmc_${name} library)
  endif()
  if(NOT name STREQUAL "device")
    list(TRANSFORM HMC_COMPILED_ALONE PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src/" OUTPUT_VARIABLE alone)
    hmc_unity(hmc_${name} ${alone})
  endif()
  target_link_libraries(hmc_${name} PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
  foreach(dependency IN LISTS ARG_DEPENDS)
    target_link_libraries(hmc_${name} PUBLIC hmc_${dependency})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY HMC_ALL_LAYERS hmc_${name})
endfunction()

# Writes `file` only when its content changes, so that a re-configure rebuilds nothing.
function(hmc_write_if_changed file content)
  if(EXISTS "${file}")
    file(READ "${file}" old)
    if(old STREQUAL content)
      return()
    endif()
  endif()
  file(WRITE "${file}" "${content}")
endfunction()

# One library per folder of cpp/src/transport (kit: what they have in common), and the table of their factories. A folder's preference at equal merit is its place in
# the order file (cpp/src/transport/order.txt), folders that it does not name last. A folder that is compiled against a foreign header
# names it in needs.txt, and after it the sources to compile where it is missing: absent.cc, which stands for the transport and says
# so, and what needs no such header.
function(hmc_transports)
  hmc_layer(transport_kit DEPENDS transport SOURCE_DIR "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src/transport/kit")
  file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src/transport/order.txt" names REGEX "^[a-z]")
  file(GLOB folders CONFIGURE_DEPENDS LIST_DIRECTORIES true RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src/transport"
       "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src/transport/*")
  list(APPEND names ${folders})
  list(REMOVE_DUPLICATES names)
  set(externs "")
  set(entries "")
  set(libraries "")
  foreach(name IN LISTS names)
    file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src/transport/${name}/*.cc")
    set(registered "")
    foreach(source IN LISTS sources)
      file(STRINGS "${source}" lines REGEX "^HMC_TRANSPORT\\(${name},")
      list(APPEND registered ${lines})
    endforeach()
    # A folder without the macro is not a transport yet.
    if(NOT registered OR (HMC_ONLY_TRANSPORTS AND NOT name IN_LIST HMC_ONLY_TRANSPORTS))
      continue()
    endif()
    set(folder "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src/transport/${name}")
    set(choice "")
    if(EXISTS "${folder}/needs.txt")
      file(STRINGS "${folder}/needs.txt" needs REGEX "^[a-z]")
      list(POP_FRONT needs header)
      check_include_file_cxx("${header}" HMC_HAVE_${name}_HEADER)
      if(HMC_HAVE_${name}_HEADER)
        set(choice NOT absent.cc)
      else()
        set(choice ONLY ${needs})
      endif()
    endif()
    hmc_layer(transport_${name} DEPENDS transport_kit SOURCE_DIR "${folder}" ${choice})
    string(APPEND externs "extern constinit const hmc::TransportFactory hmc_transport_${name};\n")
    string(APPEND entries "    &hmc_transport_${name},\n")
    list(APPEND libraries hmc_transport_${name})
  endforeach()
  set(file "${CMAKE_CURRENT_BINARY_DIR}/generated/transport_table/transport_table.cc")
  hmc_write_if_changed("${file}" "// Generated by CMake from the folders of cpp/src/transport.
#include <array>

#include \"transport/transport.h\"

${externs}
namespace hmc {
std::span<const TransportFactory* const> transport_factories() noexcept {
  static constexpr auto table = std::to_array<const TransportFactory*>({
${entries}  });
  return table;
}
}  // namespace hmc
")
  hmc_layer(transport_table DEPENDS transport SOURCE_DIR "${CMAKE_CURRENT_BINARY_DIR}/generated/transport_table")
  target_link_libraries(hmc_transport_table PUBLIC ${libraries})
endfunction()

# The table of device runtimes: every HMC_DEVICE_RUNTIME(name, ...) in cpp/src/device, the host first.
function(hmc_device_table)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src/device/*.cc")
  set(names host)
  foreach(source IN LISTS sources)
    file(STRINGS "${source}" lines REGEX "^HMC_DEVICE_RUNTIME\\(")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^HMC_DEVICE_RUNTIME\\(([a-z0-9_]+).*" "\\1" name "${line}")
      list(APPEND names ${name})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES names)
  set(externs "")
  set(entries "")
  foreach(name IN LISTS names)
    string(APPEND externs "extern constinit const hmc::DeviceRuntimeFactory hmc_device_runtime_${name};\n")
    string(APPEND entries "    &hmc_device_runtime_${name},\n")
  endforeach()
  set(file "${CMAKE_CURRENT_BINARY_DIR}/generated/device_table.cc")
  hmc_write_if_changed("${file}" "// Generated by CMake from the HMC_DEVICE_RUNTIME lines of cpp/src/device.
#include <array>

#include \"device/runtime.h\"

${externs}
namespace hmc {
std::span<const DeviceRuntimeFactory* const> device_runtimes() noexcept {
  static constexpr auto table = std::to_array<const DeviceRuntimeFactory*>({
${entries}  });
  return table;
}
}  // namespace hmc
")
  target_sources(hmc_device PRIVATE "${file}")
endfunction()

# The kernels' sources as text, for vendors whose compiler runs where they do.
function(hmc_kernel_sources)
  foreach(name copy_blocks reduce page_rows pages weighted_sum mapped_memory mapped)
    set(kernel "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src/device/kernels/${name}.cu")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${kernel}")
    file(READ "${kernel}" text)
    set(file "${CMAKE_CURRENT_BINARY_DIR}/generated/kernels/${name}_source.cc")
    hmc_write_if_changed("${file}" "// Generated by CMake from cpp/src/device/kernels/${name}.cu.
#include \"device/kernels/sources.h\"

namespace hmc {
const char ${name}_source[] = R\"kernel(${text})kernel\";
}  // namespace hmc
")
    target_sources(hmc_device PRIVATE "${file}")
  endforeach()
endfunction()

# The kernels as PTX: ptx.cc embeds every file of kernels/ptx. Without link-time optimization, which does not see the symbols that asm()
# defines.
function(hmc_kernel_ptx)
  set(kernels "${CMAKE_CURRENT_SOURCE_DIR}/cpp/src/device/kernels")
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/generated/ptx")
  file(GLOB files CONFIGURE_DEPENDS "${kernels}/ptx/*.ptx")
  set(rows "")
  foreach(file IN LISTS files)
    cmake_path(GET file STEM name)
    string(APPEND rows "HMC_PTX(${name}, \"${file}\")\n")
  endforeach()
  hmc_write_if_changed("${generated}/ptx_files.h" "// Generated by CMake from the files of cpp/src/device/kernels/ptx.\n${rows}")
  set_source_files_properties("${kernels}/ptx.cc" PROPERTIES OBJECT_DEPENDS "${files}" INCLUDE_DIRECTORIES "${generated}"
                              COMPILE_OPTIONS -fno-lto SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(hmc_device PRIVATE "${kernels}/ptx.cc")
endfunction()
