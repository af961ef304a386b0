#include "transport/tcp/incoming_puts.h"

#include <utility>

namespace hmc::tcp {
namespace {

// More are an attack. A stream that lags behind the others must not make an honest sender look like one.
constexpr std::size_t max_incoming = 2 * max_split_puts;

}  // namespace

// Null: too many.
IncomingPuts::Put* IncomingPuts::add(std::uint64_t number) {
  const auto [place, fresh] = puts_.try_emplace(number);
  return fresh && puts_.size() > max_incoming ? nullptr : &place->second;
}

bool IncomingPuts::begin(const Header& slice, std::span<const Extent> extents) {
  Put* const put = add(slice.op);
  if (put == nullptr) return false;
  put->begun += slice.length;
  if (put->ended && put->begun > put->total) return false;
  if (const ServedRegion* region = regions_->find(slice.a); region != nullptr && put->refusal == Refusal::none) {
    if (!region->writable()) put->refusal = Refusal::access;
    if (!inside(extents, region->bytes())) put->refusal = Refusal::range;
  }
  return true;
}

std::byte* IncomingPuts::target(const Header& slice) {
  const auto place = puts_.find(slice.op);
  if (place == puts_.end()) return nullptr;
  const ServedRegion* region = regions_->find(slice.a);
  Refusal& refusal = place->second.refusal;
  if (region == nullptr && refusal == Refusal::none) refusal = Refusal::stale;
  return refusal == Refusal::none ? region->data() : nullptr;
}

bool IncomingPuts::received(const Header& slice, std::optional<Arrived>& arrived) {
  const auto place = puts_.find(slice.op);
  if (place == puts_.end()) return false;
  place->second.received += slice.length;
  check_arrived(place, arrived);
  return true;
}

bool IncomingPuts::ended(const Header& end, ByteSpan signal, std::optional<Arrived>& arrived) {
  Put* const put = add(end.op);
  if (put == nullptr || put->ended || put->begun > end.a) return false;
  put->ended = true;
  put->total = end.a;
  put->signal.assign(signal.begin(), signal.end());
  check_arrived(puts_.find(end.op), arrived);
  return true;
}

void IncomingPuts::check_arrived(Puts::iterator place, std::optional<Arrived>& arrived) {
  Put& put = place->second;
  if (!put.ended || put.received != put.total) return;
  arrived = Arrived{place->first, put.refusal, std::move(put.signal)};
  puts_.erase(place);
}

}  // namespace hmc::tcp
