#include "collective/native/boards.h"

#include <cstring>
#include <vector>

#include "base/log.h"
#include "base/wire.h"
#include "collective/group.h"

namespace hmc::native {
namespace {

constexpr std::size_t most_text = 32;

// bytes = wire{text PCI address of the device, u32 version of the library}.
Result<Offer> read_offer(const fused::NativeOffer& offer) {
  const std::size_t bytes = offer.bytes.load(std::memory_order_acquire);
  if (bytes > sizeof offer.offer) return Status(Code::protocol, "malformed offer of a device");
  Bytes copied(offer.offer, offer.offer + bytes);  // another process may write there
  WireReader reader(copied);
  Offer found{"", reader.text(most_text), reader.u32()};
  if (!reader.finish()) return Status(Code::protocol, "malformed offer of a device");
  return found;
}

}  // namespace

void Boards::offer(std::uint32_t rank) {
  const std::scoped_lock lock(mutex_);
  const Ranks& ranks = group_.fused().natives();
  if (ranks.standing(rank) != Standing::none) return;
  const Offer own = ranks.offer(rank);
  Bytes bytes;
  WireWriter(bytes).text(own.card.substr(0, most_text)).u32(own.version);
  fused::NativeOffer& offered = board(rank);
  std::memcpy(offered.offer, bytes.data(), bytes.size());
  offered.bytes.store(static_cast<std::uint32_t>(bytes.size()), std::memory_order_release);
  stand(rank, Standing::offered);
}

Status Boards::check_offers() const {
  std::vector<Offer> offers;
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    HMC_ASSIGN(Offer offered, read_offer(board(r)));
    offers.push_back(std::move(offered));
  }
  return group_.fused().natives().check(offers);
}

template <class Act>
auto Boards::later(Act act) {
  return [weak = group_.weak_from_this(), act = std::move(act)](const auto& outcome) {
    const auto group = weak.lock();
    if (!group) return;
    const auto lock = group->engine()->lock();
    act(group->fused().natives().boards(), outcome);
    group->fused().wake_others();
    group->engine()->kick();
  };
}

void Boards::begin_to_connect(std::uint32_t rank) {
  if (const Status fits = check_offers(); !fits.ok()) return refuse(rank, fits);
  stand(rank, Standing::connecting);
  if (rank == 0) {
    group_.fused().natives().communicator(rank)->make_number(
        later([](Boards& boards, const Result<UniqueId>& id) { boards.numbered(id); }));
  } else {
    UniqueId id;
    std::memcpy(id.bytes, board(0).id, sizeof id.bytes);
    join(rank, id);
  }
}

void Boards::numbered(const Result<UniqueId>& id) {
  if (!id.ok()) return refuse(0, id.status());
  static_assert(sizeof id->bytes == sizeof board(0).id);
  std::memcpy(board(0).id, id->bytes, sizeof id->bytes);
  board(0).has_id.store(1, std::memory_order_seq_cst);
  join(0, *id);
}

void Boards::join(std::uint32_t rank, const UniqueId& id) {
  group_.fused().natives().communicator(rank)->connect(
      id, later([rank](Boards& boards, const Status& status) { boards.connected(rank, status); }));
}

void Boards::connected(std::uint32_t rank, const Status& status) {
  if (!status.ok()) return refuse(rank, status);
  stand(rank, Standing::connected);
  log(LogLevel::debug, group_.describe(rank) + " is connected by " + group_.fused().natives().describe());
}

void Boards::refuse(std::uint32_t rank, const Status& why) {
  stand(rank, Standing::refused);
  group_.fused().natives().refuse(why.with_context(group_.describe(rank)));
}

void Boards::stand(std::uint32_t rank, Standing standing) noexcept {
  group_.fused().natives().stand(rank, standing);
  board(rank).state.store(static_cast<std::uint32_t>(standing), std::memory_order_seq_cst);
}

Standing Boards::standing(std::uint32_t rank) const noexcept {
  if (group_.rank(rank).peer->is_self()) return group_.fused().natives().standing(rank);  // other processes may write on the Board
  return static_cast<Standing>(board(rank).state.load(std::memory_order_seq_cst));
}

bool Boards::all_stand(Standing wanted) const noexcept {
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    if (standing(r) != wanted) return false;
  }
  return true;
}

Boards::Connection Boards::connect(std::uint32_t rank, std::uint64_t sequence) {
  if (standing(rank) == Standing::offered && (rank == 0 || id_is_there())) begin_to_connect(rank);
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    if (standing(r) != Standing::refused) continue;
    const Status fits = check_offers();
    group_.fused().natives().refuse(fits.ok() ? Status(Code::unsupported, group_.describe(r) + " did not connect") : fits);
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

bool Boards::awaits(std::uint32_t other, std::uint64_t sequence) const noexcept {
  return standing(other) != Standing::connected || board(other).agreed.load(std::memory_order_seq_cst) <= sequence;
}

bool Boards::can_connect(std::uint32_t rank, std::uint64_t sequence) const noexcept {
  if (standing(rank) == Standing::offered && (rank == 0 || id_is_there())) return true;
  bool all = true, agreed = true;
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    if (standing(r) == Standing::refused) return true;
    all = all && standing(r) == Standing::connected;
    agreed = agreed && board(r).agreed.load(std::memory_order_seq_cst) > sequence;
  }
  return all && (agreed || board(rank).agreed.load(std::memory_order_relaxed) <= sequence);
}

}  // namespace hmc::native
