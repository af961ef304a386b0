#!/usr/bin/env bash
# Makes .venv with what requirements/<set>.txt names, and sees that the system packages are there. Quick when nothing changed.
# Usage: tools/bootstrap.sh build|test|check|sanitize
set -euo pipefail
cd "$(dirname "$0")/.."
set_name=${1:-build}
venv=${HMC_VENV:-.venv}

packages=()
need_package() { packages+=("$1"); }
command -v g++ >/dev/null || need_package g++
command -v make >/dev/null || need_package make
[ -e /usr/include/openssl/ssl.h ] || need_package libssl-dev
command -v python3 >/dev/null || need_package python3
if command -v python3 >/dev/null; then
  python3 -c 'import ensurepip, venv' 2>/dev/null || need_package python3-venv
  python3 - <<'PY' || need_package python3-dev
import os, sys, sysconfig
sys.exit(0 if os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")) else 1)
PY
fi
if [ "$set_name" != build ]; then
  [ -e /usr/include/gtest/gtest.h ] || need_package libgtest-dev
fi

# What only some parts need: installed where it can be, else these say that they are not there.
optional=()
optional_package() { optional+=("$1"); }
[ -e /usr/include/infiniband/verbs.h ] || optional_package libibverbs-dev
[ -e /usr/include/ucp/api/ucp.h ] || optional_package libucx-dev
if [ "$set_name" = test ]; then  # tests/rdma
  command -v qemu-system-x86_64 >/dev/null || optional_package qemu-system-x86
  command -v busybox >/dev/null || optional_package busybox-static
  [ -x /sbin/depmod ] || [ -x /usr/sbin/depmod ] || optional_package kmod
  [ -x /sbin/rdma ] || [ -x /usr/sbin/rdma ] || [ -x /usr/bin/rdma ] || optional_package iproute2
  command -v zstd >/dev/null || optional_package zstd
  [ -d /usr/lib/x86_64-linux-gnu/libibverbs ] || optional_package ibverbs-providers
  [ -d /usr/lib/python3/dist-packages/pyverbs ] || optional_package python3-pyverbs
fi

python_set=$set_name
[ "$set_name" = sanitize ] && python_set=test  # and clang, with libFuzzer
if [ "$set_name" = sanitize ] && ! clang++ -fsanitize=fuzzer,address,undefined -shared -o /dev/null -x c++ /dev/null 2>/dev/null; then
  need_package clang
fi

if [ ${#packages[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing system packages: ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null
    # libFuzzer and the sanitizers' runtimes are a package of their own on newer systems.
    [ "$set_name" = sanitize ] && apt-cache show libclang-rt-dev >/dev/null 2>&1 && need_package libclang-rt-dev
    apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
  else
    echo "missing system packages. As root: apt-get install ${packages[*]}" >&2
    exit 1
  fi
fi

if [ ${#optional[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && { [ ${#packages[@]} -gt 0 ] || apt-get update -qq >/dev/null; } &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${optional[@]}" >/dev/null; then
    echo "installed system packages: ${optional[*]}"
  else
    echo "going on without these system packages (the verbs and ucx transports, the tests of them): ${optional[*]}" >&2
  fi
fi

python3 - <<'PY'
import sys
if sys.version_info < (3, 10):
    sys.exit(f"HMC needs Python 3.10 or newer; this is {sys.version.split()[0]}")
PY

stamp="$venv/.hmc-$python_set"
fingerprint=$(cat requirements/*.txt | sha256sum | cut -d' ' -f1)
if [ ! -x "$venv/bin/python" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$fingerprint" ]; then
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  echo "installing requirements/$python_set.txt into $venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -r "requirements/$python_set.txt"
  # AMD's headers, which the tests compare ours with. Only unpacked: installed, they bring 190 MB of libraries. None: those tests skip.
  if [ "$python_set" = test ] && [ ! -e /usr/include/hip ] && command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    headers=$(mktemp -d)
    mkdir -p "$venv/share"
    (cd "$headers" && apt-get download -qq libamdhip64-dev 2>/dev/null) && dpkg-deb -x "$headers"/*.deb "$venv/share/vendor-headers" ||
      echo "AMD's headers (libamdhip64-dev) are not to be had here"
    rm -rf "$headers"
  fi
  echo "$fingerprint" >"$stamp"
fi
