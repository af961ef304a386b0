#include "native/library.h"

#include <array>
#include <utility>
#include <vector>

#include "device/runtime.h"

namespace hmc::native {
namespace {

constexpr std::array<std::string_view, 2> nccl_versions{"2", ""}, rccl_versions{"1", ""};
constexpr std::array<std::string_view, 2> mccl_versions{"2", ""}, cncl_versions{"1", ""};
constexpr std::array<std::string_view, 1> rocm_folders{"/opt/rocm/lib"}, musa_folders{"/usr/local/musa/lib"},
    mlu_folders{"/usr/local/neuware/lib64"};
constexpr std::array<std::string_view, 2> dtk_folders{"/opt/dtk/lib", "/opt/dtk/rccl/lib"};
constexpr std::array<std::string_view, 0> no_folders{};

constexpr std::array rows{
    Row{"cuda", "NCCL", nccl_api, "nccl", {"HMC_NCCL_LIBRARY", "libnccl.so", nccl_versions, no_folders}},
    Row{"rocm", "RCCL", nccl_api, "nccl", {"HMC_RCCL_LIBRARY", "librccl.so", rccl_versions, rocm_folders}},
    Row{"hygon", "DTK's RCCL", nccl_api, "nccl", {"HMC_DTK_RCCL_LIBRARY", "librccl.so", rccl_versions, dtk_folders}},
    Row{"musa", "MCCL", nccl_api, "mccl", {"HMC_MCCL_LIBRARY", "libmccl.so", mccl_versions, musa_folders}},
    Row{"mlu", "CNCL", cncl_api, "cncl", {"HMC_CNCL_LIBRARY", "libcncl.so", cncl_versions, mlu_folders}},
};

}  // namespace

std::string version_text(int version) {
  const int major = version < 10000 ? 1000 : 10000;  // NCCL numbers so up to 2.8
  return std::to_string(version / major) + "." + std::to_string(version % major / 100) + "." + std::to_string(version % 100);
}

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
  HMC_TRY(api_->load(library_));
  const int code = api_->version(&version_);
  if (api_->meaning(code) != Meaning::success) return failure("it does not say its version", code, nullptr);
  if (version_ < api_->oldest_version()) {
    return {Code::unsupported, library_.path() + " is " + std::string(row_.name) + " " + version_text(version_) + "; it takes " +
                                   version_text(api_->oldest_version()) + " or later"};
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
  std::string text = describe() + ": " + std::string(what) + ": " + api_->describe(code, handle);
  // A peer's death is known by other ways soon, and then it is the reason.
  return {api_->meaning(code) == Meaning::peer_failed ? Code::closed : Code::device, std::move(text), code};
}

}  // namespace hmc::native
