// NCCL's interface: types and values as in nccl.h of 2.10 and later, which RCCL, DTK's RCCL and MCCL follow. A version says no more
// than its functions: those that one may lack are optional.
#include <cstring>
#include <optional>

#include "native/functions.h"

namespace hmc::native {
namespace {

// Passed by value.
struct NcclId {
  char bytes[128];
};
static_assert(sizeof(NcclId) <= sizeof(UniqueId));

// clang-format off
#define HMC_NCCL_CALLS(CALL)                                                                                 \
  CALL(version, GetVersion, int(int*))                                                                       \
  CALL(unique_id, GetUniqueId, int(NcclId*))                                                                 \
  CALL(connect, CommInitRank, int(Handle*, int, NcclId, int))                                                \
  CALL(destroy, CommDestroy, int(Handle))                                                                    \
  CALL(abort, CommAbort, int(Handle))                                                                        \
  CALL(async_error, CommGetAsyncError, int(Handle, int*))                                                    \
  CALL(error_string, GetErrorString, const char*(int))

#define HMC_NCCL_OPTIONAL_CALLS(CALL)                                                                        \
  CALL(last_error, GetLastError, const char*(Handle))
// clang-format on

struct NcclFunctions : Collectives {
  HMC_NCCL_CALLS(HMC_CALL_MEMBER)
  HMC_NCCL_OPTIONAL_CALLS(HMC_CALL_MEMBER)
};

std::optional<int> type_of_nccl(DataType type) noexcept {
  switch (type) {
    case DataType::i8:
      return 0;
    case DataType::u8:
      return 1;
    case DataType::i32:
      return 2;
    case DataType::u32:
      return 3;
    case DataType::i64:
      return 4;
    case DataType::u64:
      return 5;
    case DataType::f16:
      return 6;
    case DataType::f32:
      return 7;
    case DataType::f64:
      return 8;
    case DataType::bf16:
      return 9;
    case DataType::f8_e4m3fn:
    case DataType::f8_e4m3fnuz:
    case DataType::f8_e5m2:
    case DataType::i16:
    case DataType::u16:
      break;
  }
  return std::nullopt;
}

std::optional<int> op_of_nccl(ReduceOp op) noexcept { return op == ReduceOp::avg ? std::optional(4) : op_number(op); }

class Nccl final : public Api {
 public:
  explicit Nccl(std::string_view prefix) : prefix_(prefix) {}

  Status load(VendorLibrary& library) override {
    FunctionLookup lookup(library, prefix_);
    HMC_NCCL_CALLS(HMC_REQUIRED_FUNCTION)
    HMC_COLLECTIVES(HMC_REQUIRED_FUNCTION)
    HMC_NCCL_OPTIONAL_CALLS(HMC_OPTIONAL_FUNCTION)
    return lookup.status();
  }
  int version(int* number) const override { return calls_.version(number); }
  [[nodiscard]] int oldest_version() const noexcept override { return oldest; }
  [[nodiscard]] Meaning meaning(int code) const noexcept override {
    if (code == success) return Meaning::success;
    if (code == in_progress) return Meaning::in_progress;
    return code == remote_error ? Meaning::peer_failed : Meaning::failed;
  }
  [[nodiscard]] std::string describe(int code, Handle handle) const override {
    std::string text = calls_.error_string(code);
    const char* const last = calls_.last_error == nullptr ? nullptr : calls_.last_error(handle);
    if (last != nullptr && *last != '\0') text += " (" + std::string(last) + ")";
    return text;
  }

  [[nodiscard]] bool takes_several_ranks() const noexcept override { return true; }
  [[nodiscard]] bool reduces(DataType type, ReduceOp op) const noexcept override {
    if (!type_of_nccl(type) || !op_of_nccl(op)) return false;
    return keeps_nans(type, op) && (is_floating(type) || op != ReduceOp::avg);  // averages of integers round otherwise
  }

  int make_id(UniqueId* id) const override {
    NcclId made;
    const int code = calls_.unique_id(&made);
    *id = {};
    std::memcpy(id->bytes, made.bytes, sizeof made.bytes);
    return code;
  }
  int join(Handle* handle, const UniqueId& id, const Place& place) const override {
    NcclId of_nccl;
    std::memcpy(of_nccl.bytes, id.bytes, sizeof of_nccl.bytes);
    return calls_.connect(handle, place.ranks, of_nccl, place.rank);
  }
  int leave(Handle handle) const override { return calls_.destroy(handle); }
  int abort(Handle handle) const override { return calls_.abort(handle); }
  [[nodiscard]] int asynchronous_error(Handle handle) const override {
    int code = success;
    const int asked = calls_.async_error(handle, &code);
    return asked == success ? code : asked;
  }
  int start(const Call& call, Handle handle, Stream stream) const override {
    return calls_.start(call, type_of_nccl(call.type).value_or(-1), op_of_nccl(call.op).value_or(-1), handle, stream);
  }

 private:
  static constexpr int success = 0, remote_error = 6, in_progress = 7;
  static constexpr int oldest = 21000;  // 2.10: bf16 and the average

  const std::string prefix_;
  NcclFunctions calls_;
};

}  // namespace

std::unique_ptr<Api> nccl_api(std::string_view prefix) { return std::make_unique<Nccl>(prefix); }

}  // namespace hmc::native
