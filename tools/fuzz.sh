#!/usr/bin/env bash
# Builds the libFuzzer targets with clang and sanitizers and searches from the corpus. Usage: tools/fuzz.sh [SECONDS [TARGET...]]
# SECONDS are per target (default 20), as many targets at a time as there are cores. What is found stays in build/fuzz/grown/TARGET,
# an input that ends a target in build/fuzz/found/TARGET-*: it belongs into tests/fuzz/corpus/TARGET with the repair.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}
targets=("${@:2}")
if [ ${#targets[@]} -eq 0 ]; then
  for source in tests/fuzz/fuzz_*.cc; do
    name=$(basename "$source" .cc)
    targets+=("${name#fuzz_}")
  done
fi
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache
cmake --preset asan >/dev/null
cmake --build --preset fuzz -j "$(nproc)" -- --quiet
mkdir -p build/fuzz/found
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

search() {
  local target=$1 log=build/fuzz/$1.log
  mkdir -p "build/fuzz/grown/$target"
  if build/asan/tests/fuzz/"fuzz_$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/found/$target-" "build/fuzz/grown/$target" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    echo "fuzz $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, nothing found"
  else
    tail -n 60 "$log" >&2
    echo "fuzz $target FAILED; the whole output: $log" >&2
    return 1
  fi
}
export -f search
export seconds
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'search {}'
