#include "ccl_comm.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "copies.h"
#include "core.h"
#include "kernels.h"
#include "streams.h"

namespace hmc::sim {

struct CclComm {
  std::unique_ptr<CclGroup> group;
  int rank = 0;
  int device = 0;
  std::atomic<bool> aborted{false};
  std::atomic<int> failure{0};  // asynchronous
  std::mutex mutex;
  Ticket last;  // of what was queued
};

namespace {

using CommRef = std::shared_ptr<CclComm>;

struct Comms {
  std::mutex mutex;
  std::map<const CclComm*, CommRef> open;
};
Comms& comms() {
  static Comms& instance = *new Comms;
  return instance;
}

thread_local std::string last_error;

int fail(int code, const char* call, std::string_view why) {
  last_error = std::string(call) + ": " + std::string(why);
  return code;
}

template <class Row>
const Row* numbered(std::span<const Row> rows, int number) {
  const auto found = std::ranges::find(rows, number, &Row::number);
  return found == rows.end() ? nullptr : &*found;
}

// What runs on the stream.
class Kernel {
 public:
  Kernel(CclComm& comm, const CclOperation& operation)
      : comm_(comm),
        group_(*comm.group),
        operation_(operation),
        type_(*numbered(ccl_dialect.types, operation.type)),
        op_(*numbered(ccl_dialect.ops, operation.op)) {}

  Error run() {
    if (const int code = injected_error(ccl_dialect.kernel); code != 0) {
      if (code != ccl_dialect.in_progress) comm_.failure.store(code);
      while (!comm_.aborted.load()) usleep(200);
      return Error::ok;
    }
    const std::uint32_t ranks = group_.ranks(), rank = static_cast<std::uint32_t>(comm_.rank);
    const bool gathers = operation_.shape == CclShape::all_gather, scatters = operation_.shape == CclShape::reduce_scatter;
    const bool gives = operation_.shape != CclShape::broadcast || comm_.rank == operation_.root;
    const bool takes = operation_.shape != CclShape::reduce || comm_.rank == operation_.root;
    const std::size_t block = operation_.count * type_.bytes;
    std::shared_ptr<void> held_input, held_output;
    if (gives && reach(operation_.input, block * (scatters ? ranks : 1), &input_, held_input) != Error::ok) return illegal();
    if (takes && reach(operation_.output, block * (gathers ? ranks : 1), &output_, held_output) != Error::ok) return illegal();
    for (std::uint32_t owner = 0; owner < (scatters ? ranks : 1); ++owner) {
      for (std::size_t at = 0; at < block; at += CclGroup::chunk_bytes) {
        const std::size_t bytes = std::min(CclGroup::chunk_bytes, block - at);
        if (gives) std::memcpy(group_.given(rank), input_ + owner * block + at, bytes);
        if (!group_.meet(comm_.aborted)) return Error::ok;
        if (takes && (!scatters || owner == rank)) take(block, at, bytes);
        if (!group_.meet(comm_.aborted)) return Error::ok;
      }
    }
    return Error::ok;
  }

 private:
  // The others wait for this rank, as they would for one whose kernel has faulted.
  Error illegal() {
    comm_.failure.store(ccl_dialect.device_error);
    return Error::illegal_address;
  }
  void take(std::size_t block, std::size_t at, std::size_t bytes) const {
    if (operation_.shape == CclShape::all_gather) {
      for (std::uint32_t r = 0; r < group_.ranks(); ++r) std::memcpy(output_ + r * block + at, group_.given(r), bytes);
    } else if (operation_.shape == CclShape::broadcast) {
      std::memcpy(output_ + at, group_.given(static_cast<std::uint32_t>(operation_.root)), bytes);
    } else {
      std::vector<const void*> sources;
      for (std::uint32_t r = 0; r < group_.ranks(); ++r) sources.push_back(group_.given(r));
      reduce_host(type_.name, output_ + at, sources, bytes / type_.bytes, op_.kernel, op_.averages ? group_.ranks() : 1);
    }
  }

  CclComm& comm_;
  CclGroup& group_;
  const CclOperation operation_;
  const CclType& type_;
  const CclOp& op_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
};

// Null: none, or no longer.
CommRef find(const CclComm* handle) {
  const std::lock_guard lock(comms().mutex);
  const auto found = comms().open.find(handle);
  return found == comms().open.end() ? nullptr : found->second;
}

// Once nothing of it runs.
int close(const CclComm* handle) {
  const CommRef comm = find(handle);
  if (!comm) return ccl_dialect.invalid_argument;
  Ticket last;
  {
    const std::lock_guard lock(comm->mutex);
    last = comm->last;
  }
  static_cast<void>(last.wait());
  const std::lock_guard lock(comms().mutex);
  return comms().open.erase(handle) == 1 ? 0 : ccl_dialect.invalid_argument;
}

}  // namespace

int ccl_make_id(const char* call, GroupId& id) {
  if (const int code = injected_error(call); code == ccl_dialect.in_progress) {
    for (;;) usleep(1000);
  } else if (code != 0) {
    return fail(code, call, "an injected error");
  }
  return CclGroup::make_id(id) ? 0 : fail(ccl_dialect.system_error, call, "the system refuses shared memory");
}

int ccl_join(const char* call, CclComm** comm, const GroupId& id, int rank, int ranks, int device) {
  if (const int code = injected_error(call); code == ccl_dialect.in_progress) {
    for (;;) usleep(1000);
  } else if (code != 0) {
    return fail(code, call, "an injected error");
  }
  if (comm == nullptr || rank < 0 || !device_exists(device))
    return fail(ccl_dialect.invalid_argument, call, "no such device, or no such rank");
  auto made = std::make_shared<CclComm>();
  made->rank = rank;
  made->device = device;
  const auto joined =
      CclGroup::join(id, static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(ranks), device_pci_bus(device), made->group);
  if (joined == CclGroup::Joined::invalid) return fail(ccl_dialect.invalid_argument, call, "no such communicator");
  if (joined == CclGroup::Joined::duplicate_device) return fail(ccl_dialect.invalid_usage, call, "two ranks have one device");
  const std::lock_guard lock(comms().mutex);
  *comm = made.get();
  comms().open.emplace(*comm, made);
  return 0;
}

int ccl_queue(const char* call, const CclComm* handle, const CclOperation& operation, void* stream) {
  const CommRef comm = find(handle);
  if (!comm) return fail(ccl_dialect.invalid_argument, call, "no such communicator");
  if (const int code = injected_error(call); code == ccl_dialect.in_progress) {
    while (!comm->aborted.load()) usleep(200);
    return fail(ccl_dialect.remote_error, call, "the communicator was aborted");
  } else if (code != 0) {
    return fail(code, call, "an injected error");
  }
  const CclType* const type = numbered(ccl_dialect.types, operation.type);
  if (type == nullptr || numbered(ccl_dialect.ops, operation.op) == nullptr || operation.root < 0 ||
      static_cast<std::uint32_t>(operation.root) >= comm->group->ranks())
    return fail(ccl_dialect.invalid_argument, call, "no such type, operation or root");
  const auto bits = reinterpret_cast<std::uintptr_t>(operation.input) | reinterpret_cast<std::uintptr_t>(operation.output);
  if (bits % type->bytes != 0) return fail(ccl_dialect.invalid_argument, call, "a buffer is not aligned to its elements");
  int device = -1;
  if (ccl_dialect.current_device(&device) != 0 || device != comm->device)
    return fail(ccl_dialect.invalid_usage, call, "another device is current than the communicator's");
  const StreamRef found = find_stream(stream, device);
  if (!found) return fail(ccl_dialect.invalid_argument, call, "no such stream");
  if (operation.count == 0) return 0;
  const std::lock_guard lock(comm->mutex);
  comm->last = submit(found, [comm, operation] { return Kernel(*comm, operation).run(); });
  return 0;
}

int ccl_leave(const CclComm* comm) { return close(comm); }

int ccl_abort(const CclComm* comm) {
  const CommRef found = find(comm);
  if (!found) return ccl_dialect.invalid_argument;
  found->aborted.store(true);
  return close(comm);
}

int ccl_asynchronous_error(const CclComm* comm, int* code) {
  const CommRef found = find(comm);
  if (!found || code == nullptr) return ccl_dialect.invalid_argument;
  *code = found->failure.load();
  return 0;
}

const char* ccl_last_error() { return last_error.c_str(); }

}  // namespace hmc::sim
