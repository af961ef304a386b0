// Library: a vendor's collective library, opened at first use. One per vendor and process.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "device/library.h"
#include "hmc/device.h"
#include "hmc/status.h"
#include "native/api.h"

namespace hmc::native {

struct Row {
  std::string_view vendor;  // whose devices: "cuda"
  std::string_view name;    // "NCCL"
  std::unique_ptr<Api> (*api)(std::string_view prefix);
  std::string_view prefix;  // of its functions
  LibraryRow library;
};

// Any thread, no engine lock needed but where it says so.
class Library {
 public:
  explicit Library(const Row& row) : row_(row), library_(row.library), api_(row.api(row.prefix)) {}

  // Opens it unless it is open; again where the process has loaded one since. It takes a library as real as the vendor's runtime,
  // which is opened too: no hardware's with simulated devices. Engine lock not held. Errors: unsupported, with the reason; why it
  // is avoided.
  Status open();
  // Its functions once open() was ok; what it takes at any time.
  [[nodiscard]] const Api& api() const noexcept { return *api_; }
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
  const std::unique_ptr<Api> api_;
  int version_ = 0;
  mutable std::mutex mutex_;        // of what follows
  std::optional<Status> standing_;  // once it was tried
  std::string described_;
};

// "2.27.3" of 22703, "2.8.4" of 2804
[[nodiscard]] std::string version_text(int version);

// Null: HMC knows no such library of that vendor.
[[nodiscard]] Library* library_of(std::string_view vendor) noexcept;

}  // namespace hmc::native
