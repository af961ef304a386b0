// Errors as values. The core throws nothing across a layer: a call returns Status, or Result<T> where it yields something.
// Thread rules: Status and Result are plain values; distinct objects may be used from distinct threads.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "hmc/export.h"

namespace hmc {

// What went wrong. Values are stable: they cross the wire and the Python boundary.
enum class Code : int {
  ok = 0,
  invalid_argument = 1,  // the caller asked for something that cannot be (size, rank, tag, closed object, bad slice)
  timeout = 2,           // the deadline passed; the operation is still in flight unless the message says otherwise
  cancelled = 3,         // cancel() took effect; the message says whether the target may have been written
  peer_lost = 4,         // the peer's process or host is gone
  out_of_memory = 5,     // host or device memory, descriptors, memlock
  unsupported = 6,       // this build, device or path cannot do it
  authentication = 7,    // wrong or missing key, foreign user, forged or stale ticket
  device = 8,            // a vendor runtime call failed; native() is its code
  transport = 9,         // a network or operating-system call of a transport failed; native() is errno or the backend's code
  closed = 10,           // closed by this process or by the other side, or an earlier collective failed; the message says which
  stale = 11,            // the remote buffer was closed or re-registered since the descriptor was made
  would_block = 12,      // internal back-pressure between layers; never reaches a user
  protocol = 13,         // the peer sent bytes that break the wire contract, or speaks another version
};

HMC_API std::string_view to_string(Code code) noexcept;

// An outcome. Success is one null pointer, so passing ok around costs nothing.
class [[nodiscard]] HMC_API Status {
 public:
  Status() noexcept = default;  // ok
  Status(Code code, std::string message, std::int64_t native = 0);

  [[nodiscard]] bool ok() const noexcept { return rep_ == nullptr; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] Code code() const noexcept { return rep_ ? rep_->code : Code::ok; }
  [[nodiscard]] std::int64_t native() const noexcept { return rep_ ? rep_->native : 0; }  // errno or vendor code, 0 if none
  [[nodiscard]] std::string_view message() const noexcept { return rep_ ? std::string_view(rep_->message) : std::string_view(); }
  [[nodiscard]] std::string str() const;  // "peer_lost: ... (native 104)"

  // The same error with "context: " before its message; ok stays ok.
  [[nodiscard]] Status with_context(std::string_view context) const;

 private:
  struct Rep {
    Code code;
    std::int64_t native;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

// Builds a Status from errno: code `transport` unless errno names something more precise (ENOMEM, EMFILE, ECONNREFUSED, ...).
HMC_API Status errno_status(std::string_view what, int error_number);

// Writes the error to stderr and calls std::abort: its Result was used as if it held a value.
[[noreturn]] HMC_API void abort_on_error(const Status& error) noexcept;

// A value or the reason there is none. value(), * and -> on an error are programming errors: they end the program with the error's
// message, in every build. (What goes wrong at run time never does: it is the Status.)
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}       // NOLINT(google-explicit-constructor)
  Result(Status error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] Status status() const { return ok() ? Status() : *std::get_if<1>(&state_); }
  [[nodiscard]] T& value() & { return *held(); }
  [[nodiscard]] const T& value() const& { return *held(); }
  [[nodiscard]] T&& value() && { return std::move(*held()); }
  T* operator->() { return held(); }
  const T* operator->() const { return held(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  T* held() noexcept { return const_cast<T*>(std::as_const(*this).held()); }
  const T* held() const noexcept {
    const T* const value = std::get_if<0>(&state_);
    if (value == nullptr) [[unlikely]]
      abort_on_error(*std::get_if<1>(&state_));
    return value;
  }

  std::variant<T, Status> state_;
};

// Returns the error of `expr` from the calling function, if it is one.
#define HMC_TRY(expr)                                                                       \
  do {                                                                                      \
    if (::hmc::Status hmc_try_status = (expr); !hmc_try_status.ok()) return hmc_try_status; \
  } while (false)

#define HMC_CONCAT_INNER(a, b) a##b
#define HMC_CONCAT(a, b) HMC_CONCAT_INNER(a, b)
// HMC_ASSIGN(auto x, f()): evaluates f(), returns its error, else binds the value.
#define HMC_ASSIGN(decl, expr) HMC_ASSIGN_INNER(HMC_CONCAT(hmc_result_, __LINE__), decl, expr)
#define HMC_ASSIGN_INNER(tmp, decl, expr) \
  auto tmp = (expr);                      \
  if (!tmp.ok()) return tmp.status();     \
  decl = std::move(tmp).value()

}  // namespace hmc
