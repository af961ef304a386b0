#include "native/library.h"

#include <array>
#include <utility>
#include <vector>

#include "device/runtime.h"

namespace hmc::native {
namespace {

constexpr std::array<std::string_view, 2> nccl_versions{"2", ""}, rccl_versions{"1", ""};
constexpr std::array<std::string_view, 2> mccl_versions{"2", ""};
constexpr std::array<std::string_view, 1> rocm_folders{"/opt/rocm/lib"}, musa_folders{"/usr/local/musa/lib"};
constexpr std::array<std::string_view, 2> dtk_folders{"/opt/dtk/lib", "/opt/dtk/rccl/lib"};
constexpr std::array<std::string_view, 0> no_folders{};

constexpr std::array rows{
    Row{"cuda", "NCCL", "nccl", {"HMC_NCCL_LIBRARY", "libnccl.so", nccl_versions, no_folders}},
    Row{"rocm", "RCCL", "nccl", {"HMC_RCCL_LIBRARY", "librccl.so", rccl_versions, rocm_folders}},
    Row{"hygon", "DTK's RCCL", "nccl", {"HMC_DTK_RCCL_LIBRARY", "librccl.so", rccl_versions, dtk_folders}},
    Row{"musa", "MCCL", "mccl", {"HMC_MCCL_LIBRARY", "libmccl.so", mccl_versions, musa_folders}},
};

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
}

}  // namespace

Library* library_of(std::string_view vendor) noexcept {
  // Never destroyed, as the libraries are never unloaded.
  static const std::vector<Library*>& all = *[] {
    auto* const made = new std::vector<Library*>;
    for (const Row& row : rows) made->push_back(new Library(row));
    return made;
  }();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].vendor == vendor) return all[i];
  }
  return nullptr;
}

Status Library::open() {
  const std::scoped_lock opening(opening_);
  {
    const std::scoped_lock lock(mutex_);
    if (standing_ && (library_.is_open() || !library_.resident())) return *standing_;
  }
  const Status opened = open_locked();
  const std::scoped_lock lock(mutex_);
  standing_ = opened;
  if (opened.ok()) {
    const std::string provenance = library_.provenance();
    described_ = std::string(row_.name) + " " + version_text(version_) + (provenance == "hardware" ? "" : " (" + provenance + ")");
  }
  return opened;
}

Status Library::open_locked() {
  HMC_TRY(library_.open());
  HMC_TRY(check_provenance());
  std::string missing;
  const auto load = [&](auto& function, const char* name, bool required) {
    library_.load(function, std::string(row_.prefix) + name);
    if (required && function == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(row_.prefix) + name;
  };
#define HMC_LOAD_REQUIRED(member, name, ...) load(calls_.member, #name, true);
#define HMC_LOAD_OPTIONAL(member, name, ...) load(calls_.member, #name, false);
  HMC_NCCL_CALLS(HMC_LOAD_REQUIRED)
  HMC_NCCL_OPTIONAL_CALLS(HMC_LOAD_OPTIONAL)
#undef HMC_LOAD_REQUIRED
#undef HMC_LOAD_OPTIONAL
  if (!missing.empty()) return {Code::unsupported, library_.path() + " has no " + missing};
  if (const int code = calls_.version(&version_); code != nccl::success)
    return failure("it does not say its version", code, nullptr);
  if (version_ < nccl::oldest_version) {
    return {Code::unsupported, library_.path() + " is " + std::string(row_.name) + " " + version_text(version_) + "; it takes " +
                                   version_text(nccl::oldest_version) + " or later"};
  }
  return {};
}

Status Library::check_provenance() const {
  HMC_ASSIGN(const Device first, Device::parse(std::string(row_.vendor) + ":0"));
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(first));
  const RuntimeInfo info = runtime->enumerate();
  if (!info.available || info.devices.empty()) return {Code::unsupported, "there are no devices of " + std::string(row_.vendor)};
  const std::string &devices = info.devices.front().provenance, own = library_.provenance();
  if (devices == own) return {};
  return {Code::unsupported,
          library_.path() + " is " + own + ", and the devices of " + std::string(row_.vendor) + " are " + devices};
}

void Library::avoid(const Status& why) {
  const std::scoped_lock lock(mutex_);
  if (!standing_ || standing_->ok()) standing_ = Status(Code::unsupported, "it failed earlier in this process: " + why.str());
}

Status Library::standing() const {
  const std::scoped_lock lock(mutex_);
  return standing_.value_or(Status());
}

std::string Library::describe() const {
  const std::scoped_lock lock(mutex_);
  return described_.empty() ? std::string(row_.name) : described_;
}

Status Library::failure(std::string_view what, int code, Handle handle) const {
  std::string text = describe() + ": " + std::string(what) + ": " + calls_.error_string(code);
  const char* const last = calls_.last_error == nullptr ? nullptr : calls_.last_error(handle);
  if (last != nullptr && *last != '\0') text += " (" + std::string(last) + ")";
  // A peer's death is known by other ways soon, and then it is the reason.
  return {code == nccl::remote_error ? Code::closed : Code::device, std::move(text), code};
}

std::optional<int> type_number(DataType type) noexcept {
  switch (type) {
    case DataType::f64:
      return nccl::f64;
    case DataType::f32:
      return nccl::f32;
    case DataType::f16:
      return nccl::f16;
    case DataType::bf16:
      return nccl::bf16;
    case DataType::i64:
      return nccl::i64;
    case DataType::i32:
      return nccl::i32;
    case DataType::i8:
      return nccl::i8;
    case DataType::u64:
      return nccl::u64;
    case DataType::u32:
      return nccl::u32;
    case DataType::u8:
      return nccl::u8;
    case DataType::f8_e4m3fn:
    case DataType::f8_e4m3fnuz:
    case DataType::f8_e5m2:
    case DataType::i16:
    case DataType::u16:
      break;
  }
  return std::nullopt;
}

std::optional<int> op_number(ReduceOp op, DataType type) noexcept {
  const bool floating = is_floating(type);
  switch (op) {
    case ReduceOp::sum:
      return nccl::sum;
    case ReduceOp::product:
      return nccl::product;
    case ReduceOp::min:
      return floating ? std::nullopt : std::optional(nccl::min);
    case ReduceOp::max:
      return floating ? std::nullopt : std::optional(nccl::max);
    case ReduceOp::avg:
      return floating ? std::optional(nccl::avg) : std::nullopt;
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
    case ReduceOp::premul_sum:
      break;
  }
  return std::nullopt;
}

}  // namespace hmc::native
