// Matching of receives and messages, without any network: order per peer, envelope and tag; wildcards for tag and source.
// A receive takes the earliest arrived message that fits; a message takes the earliest posted receive that fits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "comm/wire/envelope.h"
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
  // Where an entry is. Valid until the entry is taken.
  struct Place {
    const Address* address = nullptr;  // null: no entry
    List* list = nullptr;
    typename List::iterator entry;
    explicit operator bool() const noexcept { return address != nullptr; }
  };

  // The place in the order of what arrives now.
  [[nodiscard]] std::uint64_t arrival() noexcept { return next_++; }

  Place add(const Address& address, std::int64_t tag, T value) { return add(address, tag, arrival(), std::move(value)); }
  // Where `arrival` puts it. In constant time for the latest.
  Place add(const Address& address, std::int64_t tag, std::uint64_t arrival, T value) {
    auto* node = last_;
    if (node == nullptr || node->first != address)
      node = last_ = &*lists_.try_emplace(address).first;  // nodes do not move on rehash
    List& list = node->second;
    auto next = list.end();
    if (!list.empty() && list.back().sequence > arrival) {
      next = std::find_if(list.begin(), list.end(), [arrival](const Entry& entry) { return entry.sequence > arrival; });
    }
    ++size_;
    if (spare_.empty()) return {&node->first, &list, list.insert(next, {arrival, tag, std::move(value)})};
    const auto entry = spare_.begin();
    *entry = {arrival, tag, std::move(value)};
    list.splice(next, spare_, entry);
    return {&node->first, &list, entry};
  }

  // Earliest entry of `address` that `fits`.
  template <class Fits>
  Place find(const Address& address, Fits fits) {
    auto* node = last_;
    if (node == nullptr || node->first != address) {
      const auto found = lists_.find(address);
      if (found == lists_.end()) return {};
      node = last_ = &*found;
    }
    for (auto entry = node->second.begin(); entry != node->second.end(); ++entry) {
      if (fits(*entry)) return {&node->first, &node->second, entry};
    }
    return {};
  }

  // Earliest entry over every address for which `eligible(address)`, that `fits`.
  template <class Eligible, class Fits>
  Place find_any(Eligible eligible, Fits fits) {
    Place best;
    for (auto& [address, list] : lists_) {
      if (!eligible(address)) continue;
      for (auto entry = list.begin(); entry != list.end(); ++entry) {
        if (best && entry->sequence > best.entry->sequence) break;
        if (fits(*entry)) {
          best = {&address, &list, entry};
          break;
        }
      }
    }
    return best;
  }

  // In constant time.
  T take(const Place& place) {
    T value = std::move(place.entry->value);
    if (spare_.size() < keep_spare) {
      spare_.splice(spare_.begin(), *place.list, place.entry);
    } else {
      place.list->erase(place.entry);
    }
    // An empty list of a busy address stays: the next message would make it again.
    if (place.list->empty() && lists_.size() > keep_empty) {
      last_ = nullptr;
      lists_.erase(Address(*place.address));
    }
    --size_;
    return value;
  }

  // Removes every entry for which `condition(address, value)`, in no particular order.
  template <class Condition>
  std::vector<T> take_if(Condition condition) {
    std::vector<T> taken;
    last_ = nullptr;
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

  // Removes entries from the end of each list while `condition(address, value)`.
  template <class Condition>
  std::vector<T> take_last_if(Condition condition) {
    std::vector<T> taken;
    last_ = nullptr;
    for (auto list = lists_.begin(); list != lists_.end();) {
      while (!list->second.empty() && condition(list->first, list->second.back().value)) {
        taken.push_back(std::move(list->second.back().value));
        list->second.pop_back();
        --size_;
      }
      list = list->second.empty() ? lists_.erase(list) : std::next(list);
    }
    return taken;
  }

  template <class Each>
  void for_each(Each each) const {
    for (const auto& [address, list] : lists_) {
      for (const Entry& entry : list) each(address, entry.value);
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  static constexpr std::size_t keep_empty = 256;
  static constexpr std::size_t keep_spare = 64;
  std::unordered_map<Address, List, AddressHash> lists_;
  std::pair<const Address, List>* last_ = nullptr;  // of lists_, used last: a stream of messages needs no look-up
  List spare_;                                      // entries to use again; their values are empty
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
    const auto eligible = [&](const Address& from) {
      return from.envelope.scope == wanted.envelope.scope && from.envelope.dst == wanted.envelope.dst && may_come_(from);
    };
    const auto place = wanted.any() ? unexpected_.find_any(eligible, fits) : unexpected_.find(wanted, fits);
    return place ? unexpected_.take(place) : M{};
  }
  typename OrderedEntries<R>::Place post(const Address& wanted, std::int64_t tag, R receive) {
    any_posted_ = any_posted_ || wanted.any();
    return posted_.add(wanted, tag, std::move(receive));
  }

  // The earliest posted receive for a message; empty handle if none.
  R match_message(const Address& from, std::int64_t tag) {
    if (posted_.size() == 0) return R{};
    const auto fits = [tag](const auto& entry) { return tag_fits(entry.tag, tag); };
    const auto exact = posted_.find(from, fits);
    if (!any_posted_) return exact ? posted_.take(exact) : R{};
    const Address anyone{nullptr, {from.envelope.scope, any_rank, from.envelope.dst}};
    const auto wild = posted_.find(anyone, fits);
    if (wild && (!exact || wild.entry->sequence < exact.entry->sequence) && may_come_(from)) return posted_.take(wild);
    return exact ? posted_.take(exact) : R{};
  }
  void stash(const Address& from, std::int64_t tag, std::uint64_t arrival, M message) {
    unexpected_.add(from, tag, arrival, std::move(message));
  }

  OrderedEntries<R>& posted() noexcept { return posted_; }
  OrderedEntries<M>& unexpected() noexcept { return unexpected_; }

 private:
  MayCome may_come_;
  bool any_posted_ = false;  // a receive from any source, ever
  OrderedEntries<R> posted_;
  OrderedEntries<M> unexpected_;
};

}  // namespace messaging
}  // namespace hmc
