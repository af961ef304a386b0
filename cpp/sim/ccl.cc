// NCCL's interface of a simulated collective library, or MCCL's, whose names begin otherwise, in the library of the vendor whose
// devices it serves.
#include <array>

#include "abi.h"
#include "ccl_comm.h"

// Of the vendor's ABI: cuCtxGetDevice, hipGetDevice or musaGetDevice.
extern "C" int HMC_SIM_CCL_DEVICE(int* device);

#ifdef HMC_SIM_MCCL
#define HMC_SIM_CCL(name) mccl##name
#else
#define HMC_SIM_CCL(name) nccl##name
#endif

namespace hmc::sim {
namespace {

constexpr int version = 22703;
constexpr std::array types{CclType{0, "i8", 1},  CclType{1, "u8", 1},  CclType{2, "i32", 4}, CclType{3, "u32", 4},
                           CclType{4, "i64", 8}, CclType{5, "u64", 8}, CclType{6, "f16", 2}, CclType{7, "f32", 4},
                           CclType{8, "f64", 8}, CclType{9, "bf16", 2}};
// Sum, product, max, min, average.
constexpr std::array ops{CclOp{0, 0}, CclOp{1, 1}, CclOp{2, 3}, CclOp{3, 2}, CclOp{4, 4, true}};
constexpr std::array texts{"no error",
                           "unhandled device error",
                           "unhandled system error",
                           "internal error",
                           "invalid argument",
                           "invalid usage",
                           "remote process exited or there was a network error",
                           "operation in progress"};

}  // namespace

constinit const CclDialect ccl_dialect = {types, ops, "ncclKernel", 1, 2, 4, 5, 6, 7, HMC_SIM_CCL_DEVICE};

}  // namespace hmc::sim

using hmc::sim::ccl_dialect;
using hmc::sim::ccl_queue;
using hmc::sim::CclComm;
using hmc::sim::CclShape;
using hmc::sim::GroupId;

HMC_SIM_EXPORT int HMC_SIM_CCL(GetVersion)(int* version) {
  if (version == nullptr) return ccl_dialect.invalid_argument;
  *version = hmc::sim::version;
  return 0;
}

HMC_SIM_EXPORT int HMC_SIM_CCL(GetUniqueId)(GroupId* id) { return hmc::sim::ccl_make_id(__func__, *id); }

HMC_SIM_EXPORT int HMC_SIM_CCL(CommInitRank)(CclComm** comm, int ranks, GroupId id, int rank) {
  int device = -1;
  static_cast<void>(HMC_SIM_CCL_DEVICE(&device));
  return hmc::sim::ccl_join(__func__, comm, id, rank, ranks, device);
}

HMC_SIM_EXPORT int HMC_SIM_CCL(CommDestroy)(CclComm* comm) { return hmc::sim::ccl_leave(comm); }
HMC_SIM_EXPORT int HMC_SIM_CCL(CommAbort)(CclComm* comm) { return hmc::sim::ccl_abort(comm); }
HMC_SIM_EXPORT int HMC_SIM_CCL(CommGetAsyncError)(CclComm* comm, int* code) { return hmc::sim::ccl_asynchronous_error(comm, code); }
HMC_SIM_EXPORT const char* HMC_SIM_CCL(GetErrorString)(int code) {
  using hmc::sim::texts;
  return code >= 0 && code < static_cast<int>(texts.size()) ? texts[static_cast<std::size_t>(code)] : "unknown result code";
}
HMC_SIM_EXPORT const char* HMC_SIM_CCL(GetLastError)(CclComm* /*comm*/) { return hmc::sim::ccl_last_error(); }

HMC_SIM_EXPORT int HMC_SIM_CCL(AllReduce)(const void* input, void* output, std::size_t count, int type, int op, CclComm* comm,
                                          void* stream) {
  return ccl_queue(__func__, comm, {CclShape::all_reduce, input, output, count, type, op, 0}, stream);
}

HMC_SIM_EXPORT int HMC_SIM_CCL(ReduceScatter)(const void* input, void* output, std::size_t count, int type, int op, CclComm* comm,
                                              void* stream) {
  return ccl_queue(__func__, comm, {CclShape::reduce_scatter, input, output, count, type, op, 0}, stream);
}

HMC_SIM_EXPORT int HMC_SIM_CCL(AllGather)(const void* input, void* output, std::size_t count, int type, CclComm* comm,
                                          void* stream) {
  return ccl_queue(__func__, comm, {CclShape::all_gather, input, output, count, type, 0, 0}, stream);
}

HMC_SIM_EXPORT int HMC_SIM_CCL(Broadcast)(const void* input, void* output, std::size_t count, int type, int root, CclComm* comm,
                                          void* stream) {
  return ccl_queue(__func__, comm, {CclShape::broadcast, input, output, count, type, 0, root}, stream);
}

HMC_SIM_EXPORT int HMC_SIM_CCL(Reduce)(const void* input, void* output, std::size_t count, int type, int op, int root,
                                       CclComm* comm, void* stream) {
  return ccl_queue(__func__, comm, {CclShape::reduce, input, output, count, type, op, root}, stream);
}
