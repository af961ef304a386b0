// A simulated collective library, whatever its interface (ccl.cc, cncl.cc): its communicators, and what they run. As the vendors'
// it queues its work on the vendor's streams, waits there for the other ranks, and ends early only when the communicator is
// aborted.
//
// Injected errors (faults.cc) of an entry point are what it returns, but for the dialect's `in_progress`: then it does not return
// before the communicator is aborted, and one that joins, or makes a number, never. Of the dialect's `kernel`, which is no entry
// point but what runs on the stream: it hangs, and the communicator's asynchronous error is that code unless it is `in_progress`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ccl_group.h"

namespace hmc::sim {

struct CclType {
  int number;
  const char* name;  // of the kernel that reduces it
  std::size_t bytes;
};
struct CclOp {
  int number;
  unsigned kernel;  // as the kernel that reduces numbers it
  bool averages = false;
};

// How the library's interface numbers things.
struct CclDialect {
  std::span<const CclType> types;
  std::span<const CclOp> ops;
  const char* kernel;
  int device_error, system_error, invalid_argument, invalid_usage, remote_error, in_progress;
  int (*current_device)(int* device);  // of the vendor's ABI
};
// Of the file that has the library's interface.
extern const CclDialect ccl_dialect;

enum class CclShape { all_reduce, reduce_scatter, all_gather, broadcast, reduce };

struct CclOperation {
  CclShape shape = CclShape::all_reduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // elements of a block
  int type = 0;
  int op = 0;
  int root = 0;
};

struct CclComm;

// All return a code of the dialect, 0 for success. `call`: the entry point.
int ccl_make_id(const char* call, GroupId& id);
// `device`: the communicator's; it need not be current.
int ccl_join(const char* call, CclComm** comm, const GroupId& id, int rank, int ranks, int device);
int ccl_queue(const char* call, const CclComm* comm, const CclOperation& operation, void* stream);
// Return once nothing of it runs.
int ccl_leave(const CclComm* comm);
int ccl_abort(const CclComm* comm);
int ccl_asynchronous_error(const CclComm* comm, int* code);
// Of this thread.
const char* ccl_last_error();

}  // namespace hmc::sim
