// What HMC calls of a collective library with NCCL's ABI: names without their prefix, types and values as in nccl.h of 2.10 and
// later, which RCCL, DTK's RCCL and MCCL follow. A version says no more than its functions: those that one may lack are optional.
#pragma once

#include <cstddef>

#include "device/library.h"

namespace hmc::native {

// Made by one rank, given to all; passed by value.
struct UniqueId {
  char bytes[128];
};
using Handle = void*;  // ncclComm_t
using Stream = void*;  // the vendor's

namespace nccl {

constexpr int success = 0, remote_error = 6, in_progress = 7;
constexpr int oldest_version = 21000;  // 2.10: bf16 and the average
constexpr int sum = 0, product = 1, max = 2, min = 3, avg = 4;
constexpr int i8 = 0, u8 = 1, i32 = 2, u32 = 3, i64 = 4, u64 = 5, f16 = 6, f32 = 7, f64 = 8, bf16 = 9;

}  // namespace nccl

// clang-format off
#define HMC_NCCL_CALLS(CALL)                                                                                 \
  CALL(version, GetVersion, int(int*))                                                                       \
  CALL(unique_id, GetUniqueId, int(UniqueId*))                                                               \
  CALL(connect, CommInitRank, int(Handle*, int, UniqueId, int))                                              \
  CALL(destroy, CommDestroy, int(Handle))                                                                    \
  CALL(abort, CommAbort, int(Handle))                                                                        \
  CALL(async_error, CommGetAsyncError, int(Handle, int*))                                                    \
  CALL(error_string, GetErrorString, const char*(int))                                                       \
  CALL(all_reduce, AllReduce, int(const void*, void*, std::size_t, int, int, Handle, Stream))                \
  CALL(reduce_scatter, ReduceScatter, int(const void*, void*, std::size_t, int, int, Handle, Stream))        \
  CALL(all_gather, AllGather, int(const void*, void*, std::size_t, int, Handle, Stream))                     \
  CALL(broadcast, Broadcast, int(const void*, void*, std::size_t, int, int, Handle, Stream))                 \
  CALL(reduce, Reduce, int(const void*, void*, std::size_t, int, int, int, Handle, Stream))

#define HMC_NCCL_OPTIONAL_CALLS(CALL)                                                                        \
  CALL(last_error, GetLastError, const char*(Handle))
// clang-format on

struct NcclFunctions {
  HMC_NCCL_CALLS(HMC_CALL_MEMBER)
  HMC_NCCL_OPTIONAL_CALLS(HMC_CALL_MEMBER)
};

}  // namespace hmc::native
