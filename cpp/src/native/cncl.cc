// CNCL's interface: types and values as in cncl.h of 1.25. It differs from NCCL's: a process joins all its ranks of a communicator
// by one call, and says which device each has; its numbers are of 136 bytes, its averages are none, its f64 neither.
#include <cstring>
#include <optional>

#include "native/functions.h"

namespace hmc::native {
namespace {

struct CliqueId {
  char data[128];
  std::uint64_t hash;
};
static_assert(sizeof(CliqueId) == sizeof(UniqueId));

// clang-format off
#define HMC_CNCL_CALLS(CALL)                                                                                 \
  CALL(version, GetLibVersion, int(int*, int*, int*))                                                        \
  CALL(clique_id, GetCliqueId, int(CliqueId*))                                                               \
  CALL(connect, InitComms, int(Handle*, int, const int*, const int*, int, const CliqueId*))                  \
  CALL(free, FreeComm, int(Handle))                                                                          \
  CALL(abort, AbortComm, int(Handle))                                                                        \
  CALL(async_error, GetCommAsyncError, int(Handle))                                                          \
  CALL(error_string, GetErrorStr, const char*(int))
// clang-format on

struct CnclFunctions : Collectives {
  HMC_CNCL_CALLS(HMC_CALL_MEMBER)
};

std::optional<int> type_of_cncl(DataType type) noexcept {
  switch (type) {
    case DataType::f16:
      return 0x10;
    case DataType::bf16:
      return 0x11;
    case DataType::f32:
      return 0x12;
    case DataType::i8:
      return 0x20;
    case DataType::i16:
      return 0x21;
    case DataType::i32:
      return 0x22;
    case DataType::i64:
      return 0x23;
    case DataType::u8:
      return 0x30;
    case DataType::u16:
      return 0x31;
    case DataType::u32:
      return 0x32;
    case DataType::u64:
      return 0x33;
    case DataType::f64:
    case DataType::f8_e4m3fn:
    case DataType::f8_e4m3fnuz:
    case DataType::f8_e5m2:
      break;
  }
  return std::nullopt;
}

class Cncl final : public Api {
 public:
  explicit Cncl(std::string_view prefix) : prefix_(prefix) {}

  Status load(VendorLibrary& library) override {
    FunctionLookup lookup(library, prefix_);
    HMC_CNCL_CALLS(HMC_REQUIRED_FUNCTION)
    HMC_COLLECTIVES(HMC_REQUIRED_FUNCTION)
    return lookup.status();
  }
  int version(int* number) const override {
    int major = 0, minor = 0, patch = 0;
    const int code = calls_.version(&major, &minor, &patch);
    *number = major * 10000 + minor * 100 + patch;
    return code;
  }
  [[nodiscard]] int oldest_version() const noexcept override { return oldest; }
  [[nodiscard]] Meaning meaning(int code) const noexcept override {
    if (code == success) return Meaning::success;
    if (code == in_progress) return Meaning::in_progress;
    return code == socket_error || code == verbs_error ? Meaning::peer_failed : Meaning::failed;
  }
  [[nodiscard]] std::string describe(int code, Handle /*handle*/) const override {
    const char* const text = calls_.error_string(code);
    return text == nullptr ? "code " + std::to_string(code) : std::string(text);
  }

  [[nodiscard]] bool takes_several_ranks() const noexcept override { return false; }
  [[nodiscard]] bool reduces(DataType type, ReduceOp op) const noexcept override {
    return type_of_cncl(type) && op_number(op) && keeps_nans(type, op);
  }

  int make_id(UniqueId* id) const override {
    CliqueId made{};
    const int code = calls_.clique_id(&made);
    std::memcpy(id->bytes, &made, sizeof made);
    return code;
  }
  int join(Handle* handle, const UniqueId& id, const Place& place) const override {
    CliqueId of_cncl;
    std::memcpy(&of_cncl, id.bytes, sizeof of_cncl);
    return calls_.connect(handle, 1, &place.device, &place.rank, place.ranks, &of_cncl);
  }
  int leave(Handle handle) const override { return calls_.free(handle); }
  int abort(Handle handle) const override { return calls_.abort(handle); }
  [[nodiscard]] int asynchronous_error(Handle handle) const override { return calls_.async_error(handle); }
  int start(const Call& call, Handle handle, Stream stream) const override {
    return calls_.start(call, type_of_cncl(call.type).value_or(0), op_number(call.op).value_or(-1), handle, stream);
  }

 private:
  static constexpr int success = 0, in_progress = 0x06, socket_error = 0x22, verbs_error = 0x32;
  static constexpr int oldest = 12500;  // whose header this was written by

  const std::string prefix_;
  CnclFunctions calls_;
};

}  // namespace

std::unique_ptr<Api> cncl_api(std::string_view prefix) { return std::make_unique<Cncl>(prefix); }

}  // namespace hmc::native
