#include "collective/native/ranks.h"

#include <chrono>
#include <set>
#include <utility>

#include "base/log.h"
#include "collective/device_works.h"
#include "collective/group.h"
#include "device/links.h"

namespace hmc::native {
namespace {

constexpr auto patience_at_close = std::chrono::seconds(1);

}  // namespace

Ranks::Ranks(Group& group) : group_(group), boards_(group) {
  for (std::uint32_t r = 1; r < group_.size(); ++r) {
    if (group_.rank(r).device.vendor() != group_.rank(0).device.vendor()) return;
  }
  library_ = library_of(group_.rank(0).device.vendor());
  if (library_ == nullptr) return;
  locals_ = std::vector<Local>(group_.size());
  if (library_->api().takes_several_ranks() || group_.local().size() == 1) return;
  refused_ = Status(Code::unsupported, std::string(library_->name()) + " takes one rank of a process in a group, and " +
                                           group_.describe(group_.local().front()) + " has others of its process beside it");
}

Ranks::~Ranks() {
  if (group_.engine()->forked()) return;
  for (Local& local : locals_) {
    if (local.communicator) local.communicator->close(Deadline::after(std::chrono::seconds(0)));
  }
}

Status Ranks::obstacle() const {
  {
    const std::scoped_lock lock(mutex_);
    HMC_TRY(refused_);
  }
  return library_->standing();
}

Status Ranks::open() {
  {
    const std::scoped_lock lock(mutex_);
    HMC_TRY(refused_);
  }
  return library_->open();  // perhaps there is one now
}

bool Ranks::prepare(std::uint32_t rank, const Device& device) {
  if (library_ == nullptr || device.vendor() != group_.rank(rank).device.vendor()) return false;
  Status ready = open();
  const std::scoped_lock lock(mutex_);
  Local& local = locals_[rank];
  if (ready.ok() && !local.communicator) ready = make_communicator(rank, device);
  if (!ready.ok() && !std::exchange(local.told, true))
    log(LogLevel::info, "collectives of " + device.str() + " do without " + library_->describe() + ": " + ready.str());
  return ready.ok() && local.device == device;
}

Status Ranks::make_communicator(std::uint32_t rank, const Device& device) {
  HMC_ASSIGN(auto communicator, RankCommunicator::make(*library_, device, static_cast<int>(rank), static_cast<int>(group_.size())));
  Local& local = locals_[rank];
  local.device = device;
  local.communicator = std::move(communicator);
  log(LogLevel::debug, group_.describe(rank) + " offers " + device.str() + " to " + library_->describe());
  return {};
}

Offer Ranks::offer(std::uint32_t rank) const {
  return {group_.rank(rank).identity->kernel, pci_address(locals_[rank].device), static_cast<std::uint32_t>(library_->version())};
}

Status Ranks::check(const std::vector<Offer>& offers) const {
  std::set<std::pair<std::string, std::string>> cards;
  for (std::uint32_t r = 0; r < offers.size(); ++r) {
    if (offers[r].version != static_cast<std::uint32_t>(library_->version()))
      return Status(Code::unsupported, group_.describe(r) + " has another version of the library");
    if (!cards.emplace(offers[r].host, offers[r].card).second) return Status(Code::unsupported, "two ranks have one device");
  }
  return {};
}

void Ranks::refuse(const Status& why) {
  {
    const std::scoped_lock lock(mutex_);
    if (!refused_.ok()) return;
    refused_ = Status(Code::unsupported, why.str());
  }
  log(LogLevel::info, "collectives do without " + library_->describe() + ": " + why.str());
}

std::shared_ptr<WorkState> Ranks::start(std::uint32_t rank, const Call& call, RankCommunicator::Points after) {
  const Local& local = locals_[rank];
  const auto runtime = runtime_for(local.device);
  if (!runtime.ok()) return completed_work(group_.engine(), runtime.status());
  return work_on_device(group_.engine(), **runtime, [&](Completion* done) {
    local.communicator->start(call, std::move(after), done);
    return Status();
  });
}

void Ranks::abort(std::uint32_t rank) noexcept {
  if (rank < locals_.size() && locals_[rank].communicator) locals_[rank].communicator->abort();
}

void Ranks::close(bool broken) {
  const Deadline deadline = Deadline::after(patience_at_close);
  for (Local& local : locals_) {
    std::shared_ptr<RankCommunicator> communicator;
    {
      const std::scoped_lock lock(mutex_);  // another thread may be in prepare(); what that makes now, the destructor closes
      communicator = local.communicator;
    }
    if (!communicator) continue;
    if (broken) communicator->abort();
    communicator->close(deadline);
  }
}

}  // namespace hmc::native
