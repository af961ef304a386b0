#!/usr/bin/env bash
# Rewrites cpp/src/device/kernels/ptx, one file for each kernel, from the kernels' sources. Needs nvcc; run it when a kernel changes.
# usage: tools/make_ptx.sh [folder to write instead]
set -euo pipefail
cd "$(dirname "$0")/../cpp/src/device/kernels"
out=${1:-ptx}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

# image NAME SOURCE TARGET [nvcc options...]: writes NAME.ptx. Nothing newer than the target is used, so the oldest version that knows
# it is declared: any driver since then takes it.
image() {
  local ptx=$made/$1.ptx
  nvcc -ptx -arch=compute_75 -o "$ptx" "${@:4}" "$2"
  # used_bytes_mask: a hint of newer versions.
  sed -i -e '/^\/\//d' -e '/^$/d' -e '/used_bytes_mask/d' -e 's/^\.version .*/.version 6.0/' -e "s/^\.target .*/.target $3/" "$ptx"
  ptxas -arch=sm_75 -o "$made/cubin" "$ptx"  # what is newer ends this
}

image copy_blocks copy_blocks.cu sm_60

# Products are rounded before they are added up. Loads and stores of system scope (mapped.cu) are of sm_70.
for type in f64 f32 f16 bf16 f8_e4m3fn f8_e4m3fnuz f8_e5m2 i64 i32 i16 i8 u64 u32 u16 u8; do
  image "reduce_$type" reduce.cu sm_60 -fmad=false "-DHMC_REDUCE_$type"
  image "mapped_$type" mapped.cu sm_70 -fmad=false -include reduce.cu -include mapped_memory.cu "-DHMC_MAPPED_$type"
done

# Products of 16 and 8 bits that are added up at once (pages.cu) are of sm_61.
for type in f32 f16 bf16 f8_e4m3fn f8_e4m3fnuz f8_e5m2; do
  image "weighted_sum_$type" weighted_sum.cu sm_60 -fmad=false -include reduce.cu "-DHMC_WEIGHTED_SUM_$type"
  image "convert_$type" pages.cu sm_61 -fmad=false -include reduce.cu -include page_rows.cu "-DHMC_CONVERT_$type"
done
for bytes in 1 2 4; do
  image "digest_$bytes" pages.cu sm_61 -include reduce.cu -include page_rows.cu "-DHMC_DIGEST_$bytes"
done

# Only now, so that a failure above changes nothing.
mkdir -p "$out"
rm -f "$out"/*.ptx
mv "$made"/*.ptx "$out"
