#!/usr/bin/env bash
# The test suites several times in a row, on an idle machine and on worse ones: a test that fails once in ten is a fault.
set -uo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: tools/test_rounds.sh [--build DIR] [--python COMMAND] [--only cpp|python] [--jobs N] [--logs DIR] CONDITION...
Runs all tests of a build once per CONDITION and prints a line for each suite. Exit status 1 if one failed.

  idle      as `make test` does
  busy      beside four busy loops
  pinned    each test and its processes on one core

  --build DIR       with the C++ tests (default: build/package)
  --python COMMAND  runs pytest with the package under test (default: .venv/bin/python)
  --only SUITE      the C++ or the Python tests alone
  --jobs N          tests side by side (default: the number of cores, at most 16)
  --logs DIR        (default: build/rounds)
TEXT
}

build=build/package python=.venv/bin/python suites="cpp python" jobs=$(nproc) logs=build/rounds conditions=()
[ "$jobs" -le 16 ] || jobs=16
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage; exit 0 ;;
    --build | --python | --jobs | --logs) printf -v "${1#--}" %s "${2:?$1 needs a value}"; shift ;;
    --only) suites=${2:?--only needs a suite}; shift ;;
    idle | busy | pinned) conditions+=("$1") ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[ ${#conditions[@]} -gt 0 ] || { usage >&2; exit 2; }
mkdir -p "$logs"

loops=()
stop_loops() {
  [ ${#loops[@]} -eq 0 ] || kill "${loops[@]}" 2>/dev/null
  loops=()
}
trap stop_loops EXIT

run_cpp() {
  local on=()
  [ "$1" != pinned ] || on=(taskset -c 0)
  "${on[@]}" ctest --test-dir "$build" --no-tests=error --output-on-failure -j "$jobs"
}

# -P: hmc is the package, not the folder of its sources.
run_python() {
  local workers=(-n "$jobs") worker
  if [ "$1" = pinned ]; then
    workers=(-d)
    for ((worker = 0; worker < jobs; worker++)); do
      workers+=(--tx "popen//python=taskset -c $((worker % $(nproc))) $python -P")
    done
  fi
  "$python" -P -m pytest -q -p no:cacheprovider --dist loadgroup "${workers[@]}"
}

failed=0
for round in "${!conditions[@]}"; do
  condition=${conditions[$round]}
  for suite in $suites; do
    log=$logs/$((round + 1))-$condition-$suite.txt start=$SECONDS result=passed
    if [ "$condition" = busy ]; then
      for _ in 1 2 3 4; do (while :; do :; done) & loops+=($!); done
    fi
    "run_$suite" "$condition" >"$log" 2>&1 || { result=FAILED failed=1; }
    stop_loops
    printf '%2d %-6s %-6s %s in %d s: %s\n' $((round + 1)) "$condition" "$suite" "$result" $((SECONDS - start)) "$(grep -E 'tests passed|passed' "$log" | tail -1)"
  done
done
exit $failed
