#include "transport/verbs/device_memory.h"

#include <algorithm>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "hmc/memory.h"
#include "transport/verbs/loopback.h"

namespace hmc::verbs {
namespace {

constexpr std::size_t trial_bytes = 64 << 10;

struct Budgets {
  std::mutex mutex;
  std::map<std::string, std::size_t> used;  // by vendor
};

Budgets& budgets() {
  static auto* const made = new Budgets;  // used by threads that outlive main
  return *made;
}

// Registered for a while.
class Registered {
 public:
  Registered(const Nic& nic, ibv_mr* handle) noexcept : nic_(nic), handle_(handle) {}
  ~Registered() { nic_.api().dereg_mr(handle_); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  [[nodiscard]] const ibv_mr& operator*() const noexcept { return *handle_; }

 private:
  const Nic& nic_;
  ibv_mr* handle_;
};

}  // namespace

Result<std::unique_ptr<BudgetShare>> BudgetShare::take(const Device& device, std::size_t bytes) {
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  const std::size_t limit = runtime->sharing().registration_limit();
  if (limit == 0) return std::unique_ptr<BudgetShare>();
  std::string vendor(device.vendor());
  Budgets& all = budgets();
  const std::lock_guard guard(all.mutex);
  std::size_t& used = all.used[vendor];
  if (bytes > limit - used) {
    const std::string now = bytes > limit ? "" : std::to_string(used) + " are, and ";
    return Status(bytes > limit ? Code::unsupported : Code::would_block,
                  "of the " + std::to_string(limit) + " bytes of " + vendor +
                      " memory that network cards may have registered in one process, " + now + std::to_string(bytes) +
                      (bytes > limit ? " for one region are too many" : " more do not fit; close buffers that are not used"));
  }
  used += bytes;
  return std::unique_ptr<BudgetShare>(new BudgetShare(std::move(vendor), bytes));
}

BudgetShare::~BudgetShare() {
  Budgets& all = budgets();
  const std::lock_guard guard(all.mutex);
  all.used[vendor_] -= bytes_;
}

Result<ibv_mr*> DeviceMemory::add(Nic& nic, const DeviceSpan& span, unsigned access) {
  std::string reasons;
  for (const Way way : {Way::dma_buf, Way::address}) {
    if (way == Way::dma_buf ? !nic.takes_dma_buf() : !nic.takes_peer_memory()) continue;
    Status status = trusted(way, nic, span.device);
    if (status.ok()) {
      auto added = add_by(way, nic, span, access);
      if (added.ok()) return added;
      status = added.status();
    }
    reasons += (reasons.empty() ? "" : "; ") + std::string(way == Way::dma_buf ? "by a dma-buf: " : "by its address: ") +
               std::string(status.message());
  }
  if (reasons.empty()) reasons = "it takes no dma-buf, and no module that lends device memory to it is loaded";
  return Status(Code::unsupported, nic.name() + " does not reach memory of " + span.device.str() + " (" + reasons + ")");
}

Result<ibv_mr*> DeviceMemory::add_by(Way way, const Nic& nic, const DeviceSpan& span, unsigned access) {
  if (way == Way::address) return nic.register_memory(span.data, span.bytes, access);
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(span.device));
  HMC_ASSIGN(const Blob exported, runtime->sharing().export_handle(span, HandleKind::dma_buf));
  return nic.register_dma_buf(exported, span.data, span.bytes, access);
}

// The others wait meanwhile: they would try the same.
Status DeviceMemory::trusted(Way way, Nic& nic, const Device& device) {
  const std::lock_guard guard(mutex_);
  const std::tuple key(&nic, device, way);
  if (const auto found = tried_.find(key); found != tried_.end()) return found->second;
  const Status tried = try_out(way, nic, device);
  log(LogLevel::info, nic.name() + (tried.ok() ? " reaches memory of " : " was tried with memory of ") + device.str() +
                          (way == Way::dma_buf ? " by a dma-buf" : " by its address") + (tried.ok() ? "" : ": " + tried.str()));
  if (tried.code() != Code::out_of_memory) tried_.emplace(key, tried);  // memory may be free the next time
  return tried;
}

Status DeviceMemory::try_out(Way way, Nic& nic, const Device& device) {
  constexpr unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  HMC_ASSIGN(const Memory far, Memory::allocate(trial_bytes, device));
  std::vector<std::byte> near(trial_bytes), seen(trial_bytes);
  random_bytes(near);
  HMC_ASSIGN(ibv_mr * far_handle, add_by(way, nic, {far.data(), trial_bytes, device}, access));
  const Registered far_registered(nic, far_handle);
  HMC_ASSIGN(ibv_mr * near_handle, nic.register_memory(near.data(), trial_bytes, IBV_ACCESS_LOCAL_WRITE));
  const Registered near_registered(nic, near_handle);
  HMC_ASSIGN(const auto loopback, Loopback::create(nic));
  const Loopback::Place here{near.data(), (*near_registered).lkey}, there{far.data(), (*far_registered).rkey};
  HMC_TRY(loopback->write(here, there, trial_bytes));
  // What the card reads back has pushed what it wrote before it.
  std::vector<std::byte> written = near;
  std::ranges::fill(near, std::byte{0});
  HMC_TRY(loopback->read(here, there, trial_bytes));
  HMC_TRY(far.copy_to_host(seen.data(), trial_bytes));
  if (seen != written) return Status(Code::unsupported, "what it was given to write did not arrive");
  if (near != written) return Status(Code::unsupported, "it read something else than it wrote");
  random_bytes(written);
  HMC_TRY(far.copy_from_host(written.data(), trial_bytes));
  HMC_TRY(loopback->read(here, there, trial_bytes));
  if (near != written) return Status(Code::unsupported, "it does not read what the device holds");
  return {};
}

}  // namespace hmc::verbs
