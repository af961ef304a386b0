// Library: a vendor's collective library with NCCL's ABI, opened at first use. One per vendor and process.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "device/library.h"
#include "hmc/device.h"
#include "hmc/reduce.h"
#include "hmc/status.h"
#include "native/nccl_api.h"

namespace hmc::native {

struct Row {
  std::string_view vendor;  // whose devices: "cuda"
  std::string_view name;    // "NCCL"
  std::string_view prefix;  // of its functions
  LibraryRow library;
};

// Any thread, no engine lock needed but where it says so.
class Library {
 public:
  explicit Library(const Row& row) noexcept : row_(row), library_(row.library) {}

  // Opens it unless it is open; again where the process has loaded one since. It takes a library as real as the vendor's runtime,
  // which is opened too: no hardware's with simulated devices. Engine lock not held. Errors: unsupported, with the reason; why it
  // is avoided.
  Status open();
  // Once open() was ok.
  [[nodiscard]] const NcclFunctions& calls() const noexcept { return calls_; }
  [[nodiscard]] int version() const noexcept { return version_; }  // as the library numbers it: 22703
  // Calls of this process that have not begun do without it: it failed, as `why` says. The first reason stays.
  void avoid(const Status& why);
  // Why calls do without it: it is avoided, or does not open. ok where it was not tried. Lock allowed.
  [[nodiscard]] Status standing() const;
  // "NCCL 2.27.3", with "(simulated)" where it is; "NCCL" before it is open. Lock allowed.
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] std::string_view name() const noexcept { return row_.name; }
  // "NCCL 2.27.3: `what`: the library's text of the code". `handle`: may be null. Lock allowed.
  [[nodiscard]] Status failure(std::string_view what, int code, Handle handle) const;

 private:
  Status open_locked();
  Status check_provenance() const;

  const Row row_;
  mutable std::mutex opening_;  // held while it opens
  VendorLibrary library_;
  NcclFunctions calls_;
  int version_ = 0;
  mutable std::mutex mutex_;        // of what follows
  std::optional<Status> standing_;  // once it was tried
  std::string described_;
};

// Null: HMC knows no such library of that vendor.
[[nodiscard]] Library* library_of(std::string_view vendor) noexcept;

// The library's numbers. nullopt: it has no such type, or its results would not be those that Reduction promises: min and max of
// floating types lose NaNs, and averages of integers round otherwise.
[[nodiscard]] std::optional<int> type_number(DataType type) noexcept;
[[nodiscard]] std::optional<int> op_number(ReduceOp op, DataType type) noexcept;

}  // namespace hmc::native
