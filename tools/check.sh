#!/usr/bin/env bash
# Formatting, lint, types, spelling. --fix rewrites what can be rewritten. --tidy adds clang-tidy over the core (minutes).
set -uo pipefail
cd "$(dirname "$0")/.."
bin=${HMC_VENV:-.venv}/bin
fix=false tidy=false
for argument in "$@"; do
  case $argument in
    --fix) fix=true ;;
    --tidy) tidy=true ;;
    *) echo "usage: tools/check.sh [--fix] [--tidy]" >&2; exit 2 ;;
  esac
done
failed=()
check() {
  local name=$1
  shift
  "$@" || failed+=("$name")
}

mapfile -t cpp_files < <(git ls-files '*.cc' '*.h')
if $fix; then
  "$bin/clang-format" -i "${cpp_files[@]}"
  "$bin/ruff" format -q .
  "$bin/ruff" check -q --fix .
fi
check clang-format "$bin/clang-format" --dry-run -Werror "${cpp_files[@]}"
check "ruff format" "$bin/ruff" format --check -q .
check "ruff check" "$bin/ruff" check -q .
check mypy "$bin/mypy" --strict hmc
mapfile -t text_files < <(git ls-files)
check codespell "$bin/codespell" "${text_files[@]}"
if $tidy; then
  check clang-tidy "$bin/run-clang-tidy" -quiet -p build/package "$PWD/cpp/src/.*"
fi

if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
