// Matching of receives and messages, without any network: order per peer, envelope and tag; wildcards for tag and source.
// A receive takes the earliest arrived message that fits; a message takes the earliest posted receive that fits.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "comm/envelope.h"
#include "hmc/peer.h"

namespace hmc {

class PeerState;

namespace messaging {

// Where a message comes from and goes to. For a receive from any source `peer` is null and envelope.src is any_rank.
struct Address {
  const PeerState* peer = nullptr;
  Envelope envelope;
  [[nodiscard]] bool any() const noexcept { return peer == nullptr; }
  friend bool operator==(const Address&, const Address&) noexcept = default;
};

struct AddressHash {
  std::size_t operator()(const Address& a) const noexcept {
    std::uint64_t h = reinterpret_cast<std::uintptr_t>(a.peer) >> 4;
    for (const std::uint64_t part :
         {std::uint64_t{a.envelope.scope}, std::uint64_t{a.envelope.src}, std::uint64_t{a.envelope.dst}}) {
      h = (h ^ part) * 0x9E3779B97F4A7C15ULL;
    }
    return static_cast<std::size_t>(h ^ (h >> 32));
  }
};

// Entries of one kind (posted receives, or unexpected messages), in order of arrival per address.
template <class T>
class OrderedEntries {
 public:
  struct Entry {
    std::uint64_t sequence;
    std::int64_t tag;
    T value;
  };
  using List = std::list<Entry>;

  void add(const Address& address, std::int64_t tag, T value) {
    lists_[address].push_back({next_++, tag, std::move(value)});
    ++size_;
  }

  // Earliest entry of `address` that `fits`; null if none.
  template <class Fits>
  Entry* find(const Address& address, Fits fits) {
    const auto list = lists_.find(address);
    if (list == lists_.end()) return nullptr;
    for (Entry& entry : list->second) {
      if (fits(entry)) return &entry;
    }
    return nullptr;
  }

  // Earliest entry over every address for which `eligible(address)`, that `fits`.
  template <class Eligible, class Fits>
  std::pair<Address, Entry*> find_any(Eligible eligible, Fits fits) {
    std::pair<Address, Entry*> best{{}, nullptr};
    for (auto& [address, list] : lists_) {
      if (!eligible(address)) continue;
      for (Entry& entry : list) {
        if (best.second != nullptr && entry.sequence > best.second->sequence) break;
        if (fits(entry)) {
          best = {address, &entry};
          break;
        }
      }
    }
    return best;
  }

  T take(const Address& address, std::uint64_t sequence) {
    auto list = lists_.find(address);
    for (auto entry = list->second.begin();; ++entry) {
      if (entry->sequence != sequence) continue;
      T value = std::move(entry->value);
      list->second.erase(entry);
      // An empty list of a busy address stays: the next message would make it again.
      if (list->second.empty() && lists_.size() > keep_empty) lists_.erase(list);
      --size_;
      return value;
    }
  }

  // Removes every entry for which `condition(address, value)`, in no particular order.
  template <class Condition>
  std::vector<T> take_if(Condition condition) {
    std::vector<T> taken;
    for (auto list = lists_.begin(); list != lists_.end();) {
      for (auto entry = list->second.begin(); entry != list->second.end();) {
        if (condition(list->first, entry->value)) {
          taken.push_back(std::move(entry->value));
          entry = list->second.erase(entry);
          --size_;
        } else {
          ++entry;
        }
      }
      list = list->second.empty() ? lists_.erase(list) : std::next(list);
    }
    return taken;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  static constexpr std::size_t keep_empty = 256;
  std::unordered_map<Address, List, AddressHash> lists_;
  std::uint64_t next_ = 0;
  std::size_t size_ = 0;
};

inline bool tag_fits(std::int64_t wanted, std::int64_t tag) noexcept { return wanted == any_tag || wanted == tag; }

// Posted receives and unexpected messages of one Context. R and M are owning handles.
template <class R, class M>
class Matcher {
 public:
  // `may_come(address)`: whether the peer of a message owns the rank it claims, asked only for receives from any source.
  using MayCome = std::function<bool(const Address&)>;
  explicit Matcher(MayCome may_come) : may_come_(std::move(may_come)) {}

  // The earliest unexpected message for a receive; empty handle if none.
  M match_receive(const Address& wanted, std::int64_t tag) {
    if (unexpected_.size() == 0) return M{};
    const auto fits = [tag](const auto& entry) { return tag_fits(tag, entry.tag); };
    if (!wanted.any()) {
      auto* entry = unexpected_.find(wanted, fits);
      return entry ? unexpected_.take(wanted, entry->sequence) : M{};
    }
    const auto [address, entry] = unexpected_.find_any(
        [&](const Address& from) {
          return from.envelope.scope == wanted.envelope.scope && from.envelope.dst == wanted.envelope.dst && may_come_(from);
        },
        fits);
    return entry ? unexpected_.take(address, entry->sequence) : M{};
  }
  void post(const Address& wanted, std::int64_t tag, R receive) { posted_.add(wanted, tag, std::move(receive)); }

  // The earliest posted receive for a message; empty handle if none.
  R match_message(const Address& from, std::int64_t tag) {
    if (posted_.size() == 0) return R{};
    const auto fits = [tag](const auto& entry) { return tag_fits(entry.tag, tag); };
    auto* exact = posted_.find(from, fits);
    const Address anyone{nullptr, {from.envelope.scope, any_rank, from.envelope.dst}};
    auto* wild = posted_.find(anyone, fits);
    if (wild != nullptr && (exact == nullptr || wild->sequence < exact->sequence) && may_come_(from)) {
      return posted_.take(anyone, wild->sequence);
    }
    return exact ? posted_.take(from, exact->sequence) : R{};
  }
  void stash(const Address& from, std::int64_t tag, M message) { unexpected_.add(from, tag, std::move(message)); }

  OrderedEntries<R>& posted() noexcept { return posted_; }
  OrderedEntries<M>& unexpected() noexcept { return unexpected_; }

 private:
  MayCome may_come_;
  OrderedEntries<R> posted_;
  OrderedEntries<M> unexpected_;
};

}  // namespace messaging
}  // namespace hmc
