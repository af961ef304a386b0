#include "collective/native/ranks.h"

#include <chrono>
#include <cstring>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/wire.h"
#include "collective/device_reducer.h"
#include "collective/group.h"
#include "device/links.h"

namespace hmc::native {
namespace {

constexpr std::size_t most_text = 32;
constexpr auto patience_at_close = std::chrono::seconds(1);

// What a rank offers. bytes = wire{text PCI address of the device, u32 version of the library}.
struct Offered {
  std::string card;
  std::uint32_t version = 0;
};

Result<Offered> read_offer(const fused::NativeOffer& offer) {
  const std::size_t bytes = offer.bytes.load(std::memory_order_acquire);
  if (bytes > sizeof offer.offer) return Status(Code::protocol, "malformed offer of a device");
  Bytes copied(offer.offer, offer.offer + bytes);  // another process may write there
  WireReader reader(copied);
  Offered found{reader.text(most_text), reader.u32()};
  if (!reader.finish()) return Status(Code::protocol, "malformed offer of a device");
  return found;
}

}  // namespace

Ranks::~Ranks() {
  if (group_.engine()->forked()) return;
  for (Local& local : locals_) {
    if (local.communicator) local.communicator->close(Deadline::after(std::chrono::seconds(0)));
  }
}

void Ranks::use(const fused::Slots& slots) {
  slots_ = slots;
  locals_ = std::vector<Local>(group_.size());
  for (std::uint32_t r = 1; r < group_.size(); ++r) {
    if (group_.rank(r).device.vendor() != group_.rank(0).device.vendor()) return;
  }
  library_ = library_of(group_.rank(0).device.vendor());
  if (library_ == nullptr || library_->api().takes_several_ranks() || group_.local().size() == 1) return;
  const std::scoped_lock lock(mutex_);
  refused_ = Status(Code::unsupported, std::string(library_->name()) + " takes one rank of a process in a group, and " +
                                           group_.describe(group_.local().front()) + " has others of its process beside it");
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
  if (ready.ok() && !local.communicator) ready = offer(rank, device);
  if (!ready.ok() && !std::exchange(local.told, true))
    log(LogLevel::info, "collectives of " + device.str() + " do without " + library_->describe() + ": " + ready.str());
  return ready.ok() && local.device == device;
}

Status Ranks::offer(std::uint32_t rank, const Device& device) {
  HMC_ASSIGN(auto communicator, RankCommunicator::make(*library_, device, static_cast<int>(rank), static_cast<int>(group_.size())));
  Bytes bytes;
  WireWriter(bytes).text(pci_address(device).substr(0, most_text)).u32(static_cast<std::uint32_t>(library_->version()));
  fused::NativeOffer& offered = board(rank);
  std::memcpy(offered.offer, bytes.data(), bytes.size());
  offered.bytes.store(static_cast<std::uint32_t>(bytes.size()), std::memory_order_release);
  Local& local = locals_[rank];
  local.device = device;
  local.communicator = std::move(communicator);
  stand(rank, Standing::offered);
  log(LogLevel::debug, group_.describe(rank) + " offers " + device.str() + " to " + library_->describe());
  return {};
}

Status Ranks::check_offers() const {
  std::set<std::string> cards;
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    HMC_ASSIGN(const Offered offered, read_offer(board(r)));
    if (offered.version != static_cast<std::uint32_t>(library_->version()))
      return Status(Code::unsupported, group_.describe(r) + " has another version of the library");
    if (!cards.insert(offered.card).second) return Status(Code::unsupported, "two ranks have one device");
  }
  return {};
}

void Ranks::begin_to_connect(std::uint32_t rank) {
  if (const Status fits = check_offers(); !fits.ok()) return refuse(rank, fits);
  stand(rank, Standing::connecting);
  const auto then = [weak = group_.weak_from_this()](const auto& act) {
    const auto group = weak.lock();
    if (!group) return;
    const auto lock = group->engine()->lock();
    act(group->fused().natives());
    group->fused().wake_others();
    group->engine()->kick();
  };
  const auto joined = [then, rank](const Status& status) { then([&](Ranks& ranks) { ranks.connected(rank, status); }); };
  RankCommunicator& communicator = *locals_[rank].communicator;
  if (rank == 0) {
    communicator.connect([then](const UniqueId& id) { then([&](Ranks& ranks) { ranks.publish_id(id); }); }, joined);
  } else {
    UniqueId id;
    std::memcpy(id.bytes, board(0).id, sizeof id.bytes);
    communicator.connect(id, joined);
  }
}

void Ranks::publish_id(const UniqueId& id) {
  static_assert(sizeof id.bytes == sizeof board(0).id);
  std::memcpy(board(0).id, id.bytes, sizeof id.bytes);
  board(0).has_id.store(1, std::memory_order_seq_cst);
}

void Ranks::connected(std::uint32_t rank, const Status& status) {
  if (!status.ok()) return refuse(rank, status);
  stand(rank, Standing::connected);
  log(LogLevel::debug, group_.describe(rank) + " is connected by " + library_->describe());
}

void Ranks::refuse(std::uint32_t rank, const Status& why) {
  stand(rank, Standing::refused);
  log(LogLevel::info, "collectives do without " + library_->describe() + ": " + why.with_context(group_.describe(rank)).str());
  const std::scoped_lock lock(mutex_);
  refused_ = Status(Code::unsupported, why.with_context(group_.describe(rank)).str());
}

void Ranks::stand(std::uint32_t rank, Standing standing) noexcept {
  locals_[rank].standing = standing;
  board(rank).state.store(static_cast<std::uint32_t>(standing), std::memory_order_seq_cst);
}

Standing Ranks::standing(std::uint32_t rank) const noexcept {
  if (group_.rank(rank).peer->is_self()) return locals_[rank].standing;
  return static_cast<Standing>(board(rank).state.load(std::memory_order_seq_cst));
}

bool Ranks::all_stand(Standing wanted) const noexcept {
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    if (standing(r) != wanted) return false;
  }
  return true;
}

Ranks::Connection Ranks::connect(std::uint32_t rank, std::uint64_t sequence) {
  if (standing(rank) == Standing::offered && (rank == 0 || id_is_there())) begin_to_connect(rank);
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    if (standing(r) != Standing::refused) continue;
    const Status fits = check_offers();
    const std::scoped_lock lock(mutex_);
    if (refused_.ok()) refused_ = fits.ok() ? Status(Code::unsupported, group_.describe(r) + " did not connect") : fits;
    return Connection::refused;
  }
  if (!all_stand(Standing::connected)) return Connection::awaited;
  // A rank's announcement is gone once the library has carried out its part, for which it may take no other rank.
  board(rank).agreed.store(sequence + 1, std::memory_order_seq_cst);
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    if (board(r).agreed.load(std::memory_order_seq_cst) <= sequence) return Connection::awaited;
  }
  return Connection::done;
}

bool Ranks::awaits(std::uint32_t other, std::uint64_t sequence) const noexcept {
  return standing(other) != Standing::connected || board(other).agreed.load(std::memory_order_seq_cst) <= sequence;
}

bool Ranks::can_connect(std::uint32_t rank, std::uint64_t sequence) const noexcept {
  if (standing(rank) == Standing::offered && (rank == 0 || id_is_there())) return true;
  bool all = true, agreed = true;
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    if (standing(r) == Standing::refused) return true;
    all = all && standing(r) == Standing::connected;
    agreed = agreed && board(r).agreed.load(std::memory_order_seq_cst) > sequence;
  }
  return all && (agreed || board(rank).agreed.load(std::memory_order_relaxed) <= sequence);
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
  for (std::uint32_t r = 0; r < locals_.size(); ++r) {
    if (!locals_[r].communicator) continue;
    if (broken) locals_[r].communicator->abort();
    locals_[r].communicator->close(deadline);
  }
}

}  // namespace hmc::native
