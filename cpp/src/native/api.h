// Api: what HMC calls of a vendor's collective library. There is one for NCCL's interface and one for CNCL's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "device/library.h"
#include "hmc/reduce.h"
#include "hmc/status.h"

namespace hmc::native {

// Made by one rank, given to all: as much as the longest one has.
struct UniqueId {
  char bytes[136];
};
using Handle = void*;  // of a communicator
using Stream = void*;  // the vendor's

enum class Kind : std::uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, reduce };

// A collective of equal blocks, as the libraries have it.
struct Call {
  Kind kind = Kind::all_reduce;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;  // of calls that reduce
  std::size_t count = 0;        // elements: of a rank's block where there are blocks, else of a buffer
  int root = 0;
  const void* input = nullptr;
  void* output = nullptr;
};

// What a rank is in a communicator.
struct Place {
  int rank = 0;
  int ranks = 0;
  int device = 0;  // as the vendor numbers it
};

// What a code that the library returns says.
enum class Meaning : std::uint8_t {
  success,
  in_progress,
  peer_failed,  // another rank's process is gone, as far as the library knows
  failed,
};

// Any thread, once load() was ok. Codes are the library's own.
class Api {
 public:
  Api() = default;
  virtual ~Api() = default;
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  // Looks its functions up. Errors: unsupported, with the names of those that are missing.
  virtual Status load(VendorLibrary& library) = 0;
  // 22703: 2.27.3.
  virtual int version(int* number) const = 0;
  [[nodiscard]] virtual int oldest_version() const noexcept = 0;
  [[nodiscard]] virtual Meaning meaning(int code) const noexcept = 0;
  // What the library says of it; `handle`: may be null.
  [[nodiscard]] virtual std::string describe(int code, Handle handle) const = 0;

  // Whether ranks of one process, each by itself, may join one communicator.
  [[nodiscard]] virtual bool takes_several_ranks() const noexcept = 0;
  // False: it has no such type, or its results would not be those that Reduction promises: min and max of floating types lose NaNs,
  // and averages of integers round otherwise.
  [[nodiscard]] virtual bool reduces(DataType type, ReduceOp op) const noexcept = 0;

  virtual int make_id(UniqueId* id) const = 0;
  // Blocks until all ranks have come. The device is current.
  virtual int join(Handle* handle, const UniqueId& id, const Place& place) const = 0;
  virtual int leave(Handle handle) const = 0;
  virtual int abort(Handle handle) const = 0;
  // How what runs fares.
  [[nodiscard]] virtual int asynchronous_error(Handle handle) const = 0;
  // The device is current.
  virtual int start(const Call& call, Handle handle, Stream stream) const = 0;
};

// NCCL, and those that have its interface but for the prefix of their names.
std::unique_ptr<Api> nccl_api(std::string_view prefix);
// Cambricon's CNCL.
std::unique_ptr<Api> cncl_api(std::string_view prefix);

}  // namespace hmc::native
