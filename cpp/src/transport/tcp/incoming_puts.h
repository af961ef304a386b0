// IncomingPuts: the puts of the peer that have partly arrived. Their slices and their ends come on any stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "transport/kit/served_regions.h"
#include "transport/tcp/frames.h"

namespace hmc::tcp {

// Engine lock held.
class IncomingPuts {
 public:
  // A put whose bytes and end are all here.
  struct Arrived {
    std::uint64_t number = 0;
    Refusal refusal = Refusal::none;
    Bytes signal;
  };

  explicit IncomingPuts(std::shared_ptr<const ServedRegions> regions) noexcept : regions_(std::move(regions)) {}

  // A slice begins. Its ranges are checked before the first byte is written. False: too many puts at once, or more bytes than the
  // put has.
  [[nodiscard]] bool begin(const Header& slice, std::span<const Extent> extents);
  // Base of the region that the slice is written to, as of now: it may have been closed since the slice began. Null: discard the
  // bytes.
  [[nodiscard]] std::byte* target(const Header& slice);
  // The whole slice was read. `arrived` is set if it was the last part of its put. False: there is no such put.
  [[nodiscard]] bool received(const Header& slice, std::optional<Arrived>& arrived);
  // As above. False: a second end, too many puts at once, or more bytes than the put has.
  [[nodiscard]] bool ended(const Header& end, ByteSpan signal, std::optional<Arrived>& arrived);
  void clear() noexcept { puts_.clear(); }

 private:
  struct Put {
    std::uint64_t begun = 0;  // bytes of slices whose header was read; equal to `received` when no slice is under way
    std::uint64_t received = 0;
    std::uint64_t total = 0;  // known when ended
    bool ended = false;
    Refusal refusal = Refusal::none;
    Bytes signal;
  };
  using Puts = std::unordered_map<std::uint64_t, Put>;  // by number

  [[nodiscard]] Put* add(std::uint64_t number);
  void check_arrived(Puts::iterator place, std::optional<Arrived>& arrived);

  const std::shared_ptr<const ServedRegions> regions_;
  Puts puts_;
};

}  // namespace hmc::tcp
