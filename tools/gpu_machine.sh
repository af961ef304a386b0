#!/usr/bin/env bash
# Builds, tests and benches on a machine with GPUs that need not reach the network: nothing is installed outside build/.
set -uo pipefail
cd "$(dirname "$0")/.."

# name, seconds that it may take, what it does; in this order
steps=(
  "build    900 configures and builds with optimisation, and makes a package in build/gpu/stage"
  "ctest    900 the C++ tests"
  "python   900 the Python tests, on these devices and on simulated ones"
  "asan    1500 the C++ tests with AddressSanitizer and UndefinedBehaviorSanitizer, without CUDA: libcuda itself leaks"
  "facade   300 HMC's HIP backend on NVIDIA's devices, through AMD's HIP headers (tests/facade)"
  "demo     180 hmc demo on these devices"
  "bench    600 hmc bench between two devices, and between one and the CPU"
  "raw      180 hmc_cuda_raw, the driver's own copies"
  "nccl     300 bench/peers/nccl.py and torch_devices.py, NCCL through torch"
)

usage() {
  cat <<'TEXT'
usage: tools/gpu_machine.sh [--wheels DIR] [--googletest DIR] [--hip DIR] [--list] [STEP...]
Builds, tests and benches on a machine with GPUs; all steps, or those named. What a step lacks is said, and it is skipped.

  --wheels DIR       wheels to use beside what is installed, e.g. of pytest, pytest-timeout, rich, matplotlib
  --googletest DIR   GoogleTest's sources, where it is not installed
  --hip DIR          a folder with AMD's headers hip/ of 5.2 (Debian's libamdhip64-dev), where they are not installed; the step facade
                     also needs nvidia-cuda-runtime-cu11 among the wheels
  --list             print the steps and exit

Needs g++, make or ninja, cmake, OpenSSL's headers, python3 with its headers, numpy and pybind11. Logs and JSON go to $OUT (default: out).
Exit status 1 if a step failed.
TEXT
}

fail_usage() {
  echo "tools/gpu_machine.sh: $1" >&2
  usage >&2
  exit 2
}

wheels="" googletest="" hip=/usr/include chosen=()
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage; exit 0 ;;
    --list) printf '%s\n' "${steps[@]}"; exit 0 ;;
    --wheels | --googletest | --hip)
      [ -d "${2:-}" ] || fail_usage "$1 needs a folder; '${2:-}' is none"
      printf -v "${1#--}" %s "$(readlink -f "$2")"
      shift ;;
    *)
      printf '%s\n' "${steps[@]}" | grep -q "^$1 " || fail_usage "there is no step '$1'"
      chosen+=("$1") ;;
  esac
  shift
done

export root=$PWD build=$PWD/build/gpu wheels googletest hip
OUT=${OUT:-$PWD/out}
mkdir -p "$OUT" "$build"
OUT=$(readlink -f "$OUT")
export OUT
export PYTHONPATH=$build/stage:$build/site PYTHONDONTWRITEBYTECODE=1
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
export GTest_ROOT=$build/googletest  # where there is one
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache

# Ends a step that cannot run here.
skip() {
  echo "skipped: $*"
  exit 77
}

has_googletest() { [ -e /usr/include/gtest/gtest.h ] || [ -d "$GTest_ROOT" ]; }
need_module() { python3 -c "import $1" 2>/dev/null || skip "Python has no $1; --wheels brings it"; }
need_build() { [ -d "$build/stage/hmc" ] || skip "the package is not built; the step build does that"; }
# Away from the source tree, whose hmc/ has no extension.
hmc_command() { (cd "$build" && python3 -m hmc "$@"); }
# The first two accelerators, or as many as are asked for, comma-separated.
accelerators() {
  (cd "$build" && python3 -c 'import hmc, sys; print(",".join([d for d in hmc.devices() if d != "cpu"][: int(sys.argv[1])]))' "${1:-2}")
}
need_accelerator() {
  need_build
  devices=$(accelerators) || exit 1
  [ -n "$devices" ] || skip "no accelerator that HMC can use"
}

step_build() {
  rm -rf "$build/site"
  if [ -n "$wheels" ]; then
    python3 -m pip install -q --disable-pip-version-check --no-index --no-deps --target "$build/site" "$wheels"/*.whl
  fi
  if [ -n "$googletest" ]; then
    cmake -S "$googletest" -B "$build/googletest-build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib \
      -DCMAKE_INSTALL_PREFIX="$GTest_ROOT"
    cmake --build "$build/googletest-build" --target install
  fi
  local tests=OFF
  has_googletest && tests=ON
  # SKBUILD: the layout of the wheel, so that the package is whole where it is.
  cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DSKBUILD=ON -DHMC_BUILD_TESTS=$tests -DHMC_BUILD_BENCH=ON \
    -DHMC_BUILD_PYTHON=ON -DPython_EXECUTABLE="$(command -v python3)" -Dpybind11_DIR="$(python3 -m pybind11 --cmakedir)"
  cmake --build "$build"
  rm -rf "$build/stage"
  mkdir -p "$build/stage"
  cp -r hmc "$build/stage/hmc"
  cmake --install "$build" --prefix "$build/stage" >/dev/null
  hmc_command info
  echo "built; C++ tests: $tests"
}

step_ctest() {
  need_build
  has_googletest || skip "GoogleTest is not installed; --googletest brings it"
  ctest --test-dir "$build" --output-on-failure -j "$(nproc)" --output-junit "$OUT/ctest.xml"
  grep -o 'tests="[0-9]*"\|failures="[0-9]*"' "$OUT/ctest.xml" | head -2 | tr '\n' ' '
}

step_python() {
  need_build
  need_module pytest
  cd "$build"
  python3 -m pytest -q --junitxml "$OUT/python.xml" "$root/tests/python" "$root/tests/sim"
}

step_asan() {
  has_googletest || skip "GoogleTest is not installed; --googletest brings it"
  HMC_CUDA_LIBRARY=off tools/sanitize.sh asan
}

step_facade() {
  need_build
  need_module pytest
  local runtime=$build/site/nvidia/cuda_runtime folder=$build/facade driver
  [ -f "$hip/hip/hip_runtime_api.h" ] || skip "no headers of HIP; --hip brings them"
  [ -f "$runtime/lib/libcudart.so.11.0" ] || skip "no runtime of CUDA 11; --wheels brings it"
  driver=$(ldconfig -p | awk '/libcuda.so.1/ { print $NF; exit }')
  [ -n "$driver" ] || skip "no NVIDIA driver"
  mkdir -p "$folder"
  cp "$runtime/lib/libcudart.so.11.0" "$folder"
  # -w: the headers are not ours. The wheel lacks crt/, which a toolkit of any version has.
  g++ -std=c++17 -O2 -fPIC -shared -w -isystem "$hip" -isystem "$runtime/include" -isystem /usr/local/cuda/include \
    -o "$folder/libhmcfacade_rocm.so" tests/facade/hip_on_cuda.cc "$folder/libcudart.so.11.0" "$driver" -L/usr/local/cuda/lib64 -lnvrtc \
    "-Wl,-rpath,$folder:/usr/local/cuda/lib64"
  export HMC_CUDA_LIBRARY=off HMC_ROCM_LIBRARY=$folder/libhmcfacade_rocm.so
  hmc_command info | grep rocm
  if [ -x "$build/tests/cpp/test_device" ]; then "$build/tests/cpp/test_device" --gtest_filter='*/rocm'; fi
  hmc_command bench --devices "$(accelerators)" --operations send,put,get,blocks,alltoall --sizes 8,1M,64M --json "$OUT/facade.json"
  cd "$build"
  python3 -m pytest -q "$root/tests/python/test_devices.py" -k real
}

step_demo() {
  need_accelerator
  need_module rich
  hmc_command demo --json "$OUT/demo.json" --picture "$OUT/demo.png"
}

step_bench() {
  need_accelerator
  need_module rich
  hmc_command bench --devices "$devices" --operations send,put,get,blocks --json "$OUT/bench.json"
  hmc_command bench --devices "$devices" --operations alltoall --json "$OUT/bench_alltoall.json"
  hmc_command bench --devices "${devices%%,*},cpu" --operations send,put,get --json "$OUT/bench_cpu.json"
  local all count
  all=$(accelerators 64) count=$(accelerators 64 | tr ',' '\n' | wc -l)
  if [ "$count" -gt 2 ]; then
    hmc_command bench --devices "$all" --ranks "$count" --operations alltoall --json "$OUT/bench_alltoall_$count.json"
  fi
  # shellcheck disable=SC2086  # the devices, one word each
  hmc_command run -n 2 "$build/bench/cpp/hmc_device_perf" ${devices/,/ } | tee "$OUT/perf.json"
  echo "between ${devices/,/ and }, and ${devices%%,*} and cpu"
}

step_raw() {
  need_accelerator
  case $devices in
    cuda:*,cuda:*) set -- 0 1 ;;
    cuda:*) set -- 0 ;;
    *) skip "no CUDA device" ;;
  esac
  "$build/bench/cpp/hmc_cuda_raw" "$@" | tee "$OUT/raw.json"
}

step_nccl() {
  need_module torch
  python3 -c 'import sys, torch; sys.exit(not (torch.distributed.is_nccl_available() and torch.cuda.device_count() > 1))' ||
    skip "torch has no NCCL, or fewer than two devices"
  local count
  count=$(python3 -c 'import torch; print(torch.cuda.device_count())')
  python3 bench/peers/nccl.py 2 | tee "$OUT/nccl.json"
  need_build
  python3 bench/peers/torch_devices.py 2 | tee "$OUT/torch_devices.json"
  if [ "$count" -gt 2 ]; then python3 bench/peers/nccl.py "$count" | tee -a "$OUT/nccl.json"; fi
}

export -f skip has_googletest need_module need_build need_accelerator hmc_command accelerators
{
  date -u
  uname -sr
  python3 --version
  g++ --version | head -1
  nvidia-smi 2>&1
  nvcc --version 2>&1 | tail -1
} >"$OUT/machine.log"

summary="" failed=0
for line in "${steps[@]}"; do
  read -r name seconds _ <<<"$line"
  [ ${#chosen[@]} -eq 0 ] || [[ " ${chosen[*]} " == *" $name "* ]] || continue
  echo "==== $name"
  start=$SECONDS log=$OUT/$name.log
  export -f "step_${name?}"
  timeout --kill-after=10 "$seconds" bash -c "set -euo pipefail; step_$name" >"$log" 2>&1
  case $? in
    0) result=passed ;;
    77) result=skipped ;;
    124 | 137) result=TIMEOUT failed=1 ;;
    *) result=FAILED failed=1 ;;
  esac
  [[ $result == passed || $result == skipped ]] || tail -n 30 "$log"
  summary+=$(printf '%-7s %-8s %4d s  %s' "$name" "$result" $((SECONDS - start)) "$(tail -n 1 "$log" | cut -c 1-100)")$'\n'
done
echo "==== summary, logs in $OUT"
printf '%s' "$summary" | tee "$OUT/summary.txt"
exit "$failed"
