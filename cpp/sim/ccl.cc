// A simulated collective library with NCCL's ABI, or with MCCL's, whose names begin otherwise, in the library of the vendor whose
// devices it serves: as NCCL it queues its work
// on the vendor's streams, waits there for the other ranks, and ends early only when the communicator is aborted.
//
// Injected errors (faults.cc) of an entry point are what it returns, but for 7 (in progress): then it does not return before the
// communicator is aborted, and ncclCommInitRank never. Of "ncclKernel", which is no entry point but what runs on the stream: it
// hangs, and ncclCommGetAsyncError gives the code unless that is 7.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "abi.h"
#include "ccl_group.h"
#include "copies.h"
#include "kernels.h"
#include "streams.h"

// Of the vendor's ABI: cuCtxGetDevice, hipGetDevice or musaGetDevice.
extern "C" int HMC_SIM_CCL_DEVICE(int* device);

#ifdef HMC_SIM_MCCL
#define HMC_SIM_CCL(name) mccl##name
#else
#define HMC_SIM_CCL(name) nccl##name
#endif

namespace hmc::sim {
namespace {

enum Result { success = 0, system_error = 2, invalid_argument = 4, invalid_usage = 5, remote_error = 6, in_progress = 7 };
constexpr int version = 22703;

struct Type {
  const char* name;  // of the kernel that reduces it
  std::size_t bytes;
};
constexpr std::array types{Type{"i8", 1},  Type{"u8", 1},  Type{"i32", 4}, Type{"u32", 4}, Type{"i64", 8},
                           Type{"u64", 8}, Type{"f16", 2}, Type{"f32", 4}, Type{"f64", 8}, Type{"bf16", 2}};
constexpr std::array<unsigned, 5> kernel_ops{0, 1, 3, 2, 4};  // sum, product, max, min, average as the kernel numbers them

struct Comm {
  std::unique_ptr<CclGroup> group;
  std::uint32_t rank = 0;
  int device = 0;
  std::atomic<bool> aborted{false};
  std::atomic<int> failure{success};  // asynchronous
  std::mutex mutex;
  Ticket last;  // of what was queued
};

using CommRef = std::shared_ptr<Comm>;

struct Comms {
  std::mutex mutex;
  std::map<const Comm*, CommRef> open;
};
Comms& comms() {
  static Comms& instance = *new Comms;
  return instance;
}

thread_local std::string last_error;

int fail(int code, std::string why) {
  last_error = std::move(why);
  return code;
}

enum class Shape { all_reduce, reduce_scatter, all_gather, broadcast, reduce };

struct Operation {
  Shape shape = Shape::all_reduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // elements of a block
  int type = 0;
  int op = 0;
  std::uint32_t root = 0;
};

// What runs on the stream.
class Kernel {
 public:
  Kernel(Comm& comm, const Operation& operation) : comm_(comm), group_(*comm.group), operation_(operation) {}

  Error run() {
    if (const int code = injected_error("ncclKernel"); code != 0) {
      if (code != in_progress) comm_.failure.store(code);
      while (!comm_.aborted.load()) usleep(200);
      return Error::ok;
    }
    const std::uint32_t ranks = group_.ranks();
    const bool gathers = operation_.shape == Shape::all_gather, scatters = operation_.shape == Shape::reduce_scatter;
    const bool gives = operation_.shape != Shape::broadcast || comm_.rank == operation_.root;
    const bool takes = operation_.shape != Shape::reduce || comm_.rank == operation_.root;
    const std::size_t block = operation_.count * type().bytes;
    std::shared_ptr<void> held_input, held_output;
    if (gives && reach(operation_.input, block * (scatters ? ranks : 1), &input_, held_input) != Error::ok) return illegal();
    if (takes && reach(operation_.output, block * (gathers ? ranks : 1), &output_, held_output) != Error::ok) return illegal();
    for (std::uint32_t owner = 0; owner < (scatters ? ranks : 1); ++owner) {
      for (std::size_t at = 0; at < block; at += CclGroup::chunk_bytes) {
        const std::size_t bytes = std::min(CclGroup::chunk_bytes, block - at);
        if (gives) std::memcpy(group_.given(comm_.rank), input_ + owner * block + at, bytes);
        if (!group_.meet(comm_.aborted)) return Error::ok;
        if (takes && (!scatters || owner == comm_.rank)) take(block, at, bytes);
        if (!group_.meet(comm_.aborted)) return Error::ok;
      }
    }
    return Error::ok;
  }

 private:
  [[nodiscard]] const Type& type() const { return types[static_cast<std::size_t>(operation_.type)]; }
  // The others wait for this rank, as they would for one whose kernel has faulted.
  Error illegal() {
    comm_.failure.store(1);
    return Error::illegal_address;
  }
  void take(std::size_t block, std::size_t at, std::size_t bytes) const {
    if (operation_.shape == Shape::all_gather) {
      for (std::uint32_t r = 0; r < group_.ranks(); ++r) std::memcpy(output_ + r * block + at, group_.given(r), bytes);
    } else if (operation_.shape == Shape::broadcast) {
      std::memcpy(output_ + at, group_.given(operation_.root), bytes);
    } else {
      std::vector<const void*> sources;
      for (std::uint32_t r = 0; r < group_.ranks(); ++r) sources.push_back(group_.given(r));
      const bool average = operation_.op == 4;
      reduce_host(type().name, output_ + at, sources, bytes / type().bytes, kernel_ops[static_cast<std::size_t>(operation_.op)],
                  average ? group_.ranks() : 1);
    }
  }

  Comm& comm_;
  CclGroup& group_;
  const Operation operation_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
};

// Null: none, or no longer.
CommRef find(const Comm* handle) {
  const std::lock_guard lock(comms().mutex);
  const auto found = comms().open.find(handle);
  return found == comms().open.end() ? nullptr : found->second;
}

int queue(const char* call, const Comm* handle, const Operation& operation, void* stream) {
  const CommRef comm = find(handle);
  if (!comm) return fail(invalid_argument, std::string(call) + ": no such communicator");
  if (const int code = injected_error(call); code == in_progress) {
    while (!comm->aborted.load()) usleep(200);
    return fail(remote_error, std::string(call) + ": the communicator was aborted");
  } else if (code != 0) {
    return fail(code, std::string(call) + ": an injected error");
  }
  if (operation.type < 0 || operation.type >= static_cast<int>(types.size()) || operation.op < 0 ||
      operation.op >= static_cast<int>(kernel_ops.size()) || operation.root >= comm->group->ranks())
    return fail(invalid_argument, std::string(call) + ": no such type, operation or root");
  const std::size_t element = types[static_cast<std::size_t>(operation.type)].bytes;
  const auto bits = reinterpret_cast<std::uintptr_t>(operation.input) | reinterpret_cast<std::uintptr_t>(operation.output);
  if (bits % element != 0) return fail(invalid_argument, std::string(call) + ": a buffer is not aligned to its elements");
  int device = -1;
  if (HMC_SIM_CCL_DEVICE(&device) != 0 || device != comm->device)
    return fail(invalid_usage, std::string(call) + ": another device is current than the communicator's");
  const StreamRef found = find_stream(stream, device);
  if (!found) return fail(invalid_argument, std::string(call) + ": no such stream");
  if (operation.count == 0) return success;
  const std::lock_guard lock(comm->mutex);
  comm->last = submit(found, [comm, operation] { return Kernel(*comm, operation).run(); });
  return success;
}

// Returns once nothing of it runs.
int end(const Comm* handle) {
  const CommRef comm = find(handle);
  if (!comm) return invalid_argument;
  Ticket last;
  {
    const std::lock_guard lock(comm->mutex);
    last = comm->last;
  }
  static_cast<void>(last.wait());
  const std::lock_guard lock(comms().mutex);
  return comms().open.erase(handle) == 1 ? success : invalid_argument;
}

}  // namespace
}  // namespace hmc::sim

using hmc::sim::CclGroup;
using hmc::sim::Comm;
using hmc::sim::fail;
using hmc::sim::GroupId;
using hmc::sim::Shape;
namespace sim = hmc::sim;

HMC_SIM_EXPORT int HMC_SIM_CCL(GetVersion)(int* version) {
  if (version == nullptr) return sim::invalid_argument;
  *version = sim::version;
  return sim::success;
}

HMC_SIM_EXPORT int HMC_SIM_CCL(GetUniqueId)(GroupId* id) {
  if (const int code = sim::injected_error(__func__); code != 0) return fail(code, std::string(__func__) + ": an injected error");
  return CclGroup::make_id(*id) ? sim::success : fail(sim::system_error, "the system refuses shared memory");
}

HMC_SIM_EXPORT int HMC_SIM_CCL(CommInitRank)(Comm** comm, int ranks, GroupId id, int rank) {
  if (const int code = sim::injected_error(__func__); code == sim::in_progress) {
    for (;;) usleep(1000);
  } else if (code != 0) {
    return fail(code, std::string(__func__) + ": an injected error");
  }
  auto made = std::make_shared<Comm>();
  if (comm == nullptr || rank < 0 || HMC_SIM_CCL_DEVICE(&made->device) != 0)
    return fail(sim::invalid_argument, std::string(__func__) + ": no current device, or no such rank");
  made->rank = static_cast<std::uint32_t>(rank);
  const auto joined =
      CclGroup::join(id, made->rank, static_cast<std::uint32_t>(ranks), sim::device_pci_bus(made->device), made->group);
  if (joined == CclGroup::Joined::invalid) return fail(sim::invalid_argument, std::string(__func__) + ": no such communicator");
  if (joined == CclGroup::Joined::duplicate_device)
    return fail(sim::invalid_usage, std::string(__func__) + ": two ranks have one device");
  const std::lock_guard lock(sim::comms().mutex);
  *comm = made.get();
  sim::comms().open.emplace(*comm, made);
  return sim::success;
}

HMC_SIM_EXPORT int HMC_SIM_CCL(CommDestroy)(Comm* comm) { return sim::end(comm); }

HMC_SIM_EXPORT int HMC_SIM_CCL(CommAbort)(Comm* comm) {
  const sim::CommRef found = sim::find(comm);
  if (!found) return sim::invalid_argument;
  found->aborted.store(true);
  return sim::end(comm);
}

HMC_SIM_EXPORT int HMC_SIM_CCL(CommGetAsyncError)(Comm* comm, int* code) {
  const sim::CommRef found = sim::find(comm);
  if (!found || code == nullptr) return sim::invalid_argument;
  *code = found->failure.load();
  return sim::success;
}

HMC_SIM_EXPORT const char* HMC_SIM_CCL(GetErrorString)(int code) {
  constexpr std::array texts{"no error",
                             "unhandled device error",
                             "unhandled system error",
                             "internal error",
                             "invalid argument",
                             "invalid usage",
                             "remote process exited or there was a network error",
                             "operation in progress"};
  return code >= 0 && code < static_cast<int>(texts.size()) ? texts[static_cast<std::size_t>(code)] : "unknown result code";
}

HMC_SIM_EXPORT const char* HMC_SIM_CCL(GetLastError)(Comm* /*comm*/) { return sim::last_error.c_str(); }

HMC_SIM_EXPORT int HMC_SIM_CCL(AllReduce)(const void* input, void* output, std::size_t count, int type, int op, Comm* comm,
                                          void* stream) {
  return sim::queue(__func__, comm, {Shape::all_reduce, input, output, count, type, op, 0}, stream);
}

HMC_SIM_EXPORT int HMC_SIM_CCL(ReduceScatter)(const void* input, void* output, std::size_t count, int type, int op, Comm* comm,
                                              void* stream) {
  return sim::queue(__func__, comm, {Shape::reduce_scatter, input, output, count, type, op, 0}, stream);
}

HMC_SIM_EXPORT int HMC_SIM_CCL(AllGather)(const void* input, void* output, std::size_t count, int type, Comm* comm, void* stream) {
  return sim::queue(__func__, comm, {Shape::all_gather, input, output, count, type, 0, 0}, stream);
}

HMC_SIM_EXPORT int HMC_SIM_CCL(Broadcast)(const void* input, void* output, std::size_t count, int type, int root, Comm* comm,
                                          void* stream) {
  return sim::queue(__func__, comm, {Shape::broadcast, input, output, count, type, 0, static_cast<std::uint32_t>(root)}, stream);
}

HMC_SIM_EXPORT int HMC_SIM_CCL(Reduce)(const void* input, void* output, std::size_t count, int type, int op, int root, Comm* comm,
                                       void* stream) {
  return sim::queue(__func__, comm, {Shape::reduce, input, output, count, type, op, static_cast<std::uint32_t>(root)}, stream);
}
