#!/usr/bin/env bash
# Builds the C++ tests with sanitizers and runs them. Usage: tools/sanitize.sh asan|tsan [ctest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1
shift
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
# Where ninja or clang is missing, make and g++ do. The fuzz targets are clang's; g++ warns of what sanitizers insert.
instead=()
command -v ninja >/dev/null || instead+=(-G "Unix Makefiles")
command -v clang++ >/dev/null || instead+=(-DCMAKE_CXX_COMPILER=g++ -DHMC_BUILD_FUZZERS=OFF -DHMC_WERROR=OFF)
cmake --preset "$kind" "${instead[@]}" >/dev/null
cmake --build --preset "$kind" -j "$(nproc)" -- --quiet
export HMC_TEST_TIMEOUT=300
# Shadow memory is several times the memory: more than 4 GiB at once are for the plain build.
export HMC_TEST_SMALL=1
# LeakSanitizer of clang 14 takes the header of malloc's chunk for that of a thread-local block of a library opened late (glibc 2.19
# had one there) and reads from address 0x328 on when what lies before the block is not zero. Such blocks are none of its roots then.
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:intercept_tls_get_addr=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
# UCX is not built with sanitizers: ThreadSanitizer would not see what orders its thread and ours. The tests of ucx say that it is off.
# AddressSanitizer sees what HMC does with the memory that it shares with UCX, and finds no leak in either.
[ "$kind" = tsan ] && export HMC_UCX_LIBRARY=off
# Tests of fork() start threads in the child: what they start there is only the child's.
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:die_after_fork=0
# The shadow mapping of older ThreadSanitizers does not fit kernels with many bits of address randomisation.
run=()
[ "$kind" = tsan ] && run=(setarch -R)
"${run[@]}" ctest --test-dir "build/$kind" --output-on-failure -j "$(($(nproc) * 2))" "$@" || {
  status=$?
  tools/failures.sh "build/$kind"
  exit $status
}
