// CNCL's interface (Cambricon) of a simulated collective library, in that of the simulated CNRT. A process uses a clique's number
// once, for all its ranks.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>

#include "abi.h"
#include "ccl_comm.h"

extern "C" int cnrtGetDevice(int* device);

namespace hmc::sim {
namespace {

constexpr std::array types{CclType{0x10, "f16", 2}, CclType{0x11, "bf16", 2}, CclType{0x12, "f32", 4}, CclType{0x20, "i8", 1},
                           CclType{0x21, "i16", 2}, CclType{0x22, "i32", 4},  CclType{0x23, "i64", 8}, CclType{0x30, "u8", 1},
                           CclType{0x31, "u16", 2}, CclType{0x32, "u32", 4},  CclType{0x33, "u64", 8}};
constexpr std::array ops{CclOp{0, 0}, CclOp{1, 1}, CclOp{2, 3}, CclOp{3, 2}};  // sum, product, max, min
constexpr int reinitialised = 0x71;

struct CliqueId {
  GroupId data;
  std::uint64_t hash;
};

// False: this process has used it.
bool use_once(const GroupId& id) {
  static std::mutex mutex;
  static std::set<GroupId>& used = *new std::set<GroupId>;
  const std::lock_guard lock(mutex);
  return used.insert(id).second;
}

std::uint64_t hash_of(const GroupId& id) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char byte : id) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211U;
  return hash;
}

}  // namespace

constinit const CclDialect ccl_dialect = {types, ops, "cnclKernel", 0x16, 0x02, 0x07, 0x11, 0x22, 0x06, cnrtGetDevice};

}  // namespace hmc::sim

using hmc::sim::ccl_dialect;
using hmc::sim::ccl_queue;
using hmc::sim::CclComm;
using hmc::sim::CclShape;
using hmc::sim::CliqueId;

HMC_SIM_EXPORT int cnclGetLibVersion(int* major, int* minor, int* patch) {
  if (major == nullptr || minor == nullptr || patch == nullptr) return ccl_dialect.invalid_argument;
  *major = 1;
  *minor = 25;
  *patch = 0;
  return 0;
}

HMC_SIM_EXPORT int cnclGetCliqueId(CliqueId* id) {
  if (id == nullptr) return ccl_dialect.invalid_argument;
  const int code = hmc::sim::ccl_make_id(__func__, id->data);
  id->hash = hmc::sim::hash_of(id->data);
  return code;
}

// The simulation joins one rank at a time, as each waits for all others.
HMC_SIM_EXPORT int cnclInitComms(CclComm** comms, int count, const int* devices, const int* ranks, int size, const CliqueId* id) {
  if (comms == nullptr || count != 1 || devices == nullptr || ranks == nullptr || id == nullptr ||
      id->hash != hmc::sim::hash_of(id->data))
    return ccl_dialect.invalid_argument;
  if (!hmc::sim::use_once(id->data)) return hmc::sim::reinitialised;
  return hmc::sim::ccl_join(__func__, comms, id->data, ranks[0], size, devices[0]);
}

HMC_SIM_EXPORT int cnclFreeComm(CclComm* comm) { return hmc::sim::ccl_leave(comm); }
HMC_SIM_EXPORT int cnclAbortComm(CclComm* comm) { return hmc::sim::ccl_abort(comm); }
HMC_SIM_EXPORT int cnclGetCommAsyncError(CclComm* comm) {
  int code = 0;
  const int asked = hmc::sim::ccl_asynchronous_error(comm, &code);
  return asked == 0 ? code : asked;
}

HMC_SIM_EXPORT const char* cnclGetErrorStr(int code) {
  switch (code) {
    case 0:
      return "success";
    case 0x02:
      return "system error";
    case 0x06:
      return "asynchronous operations are in progress";
    case 0x07:
      return "invalid arguments";
    case 0x11:
      return "unsupported operation";
    case 0x16:
      return "asynchronous error";
    case 0x22:
      return "socket error";
    case hmc::sim::reinitialised:
      return "communicators have been initialized already";
    default:
      return "internal error";
  }
}

HMC_SIM_EXPORT int cnclAllReduce(const void* input, void* output, std::size_t count, int type, int op, CclComm* comm, void* queue) {
  return ccl_queue(__func__, comm, {CclShape::all_reduce, input, output, count, type, op, 0}, queue);
}

HMC_SIM_EXPORT int cnclReduceScatter(const void* input, void* output, std::size_t count, int type, int op, CclComm* comm,
                                     void* queue) {
  return ccl_queue(__func__, comm, {CclShape::reduce_scatter, input, output, count, type, op, 0}, queue);
}

HMC_SIM_EXPORT int cnclAllGather(const void* input, void* output, std::size_t count, int type, CclComm* comm, void* queue) {
  return ccl_queue(__func__, comm, {CclShape::all_gather, input, output, count, type, 0, 0}, queue);
}

HMC_SIM_EXPORT int cnclBroadcast(const void* input, void* output, std::size_t count, int type, int root, CclComm* comm,
                                 void* queue) {
  return ccl_queue(__func__, comm, {CclShape::broadcast, input, output, count, type, 0, root}, queue);
}

HMC_SIM_EXPORT int cnclReduce(const void* input, void* output, std::size_t count, int type, int op, int root, CclComm* comm,
                              void* queue) {
  return ccl_queue(__func__, comm, {CclShape::reduce, input, output, count, type, op, root}, queue);
}
