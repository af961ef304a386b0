// Parcel: a slot on its way to the other side. Where the ring is shared its message alone goes; where not, the bytes go with it.
#pragma once

#include "transport/kit/carrier.h"

namespace hmc::staging {

// Engine lock held. Not movable: a carrier knows its address while bytes are under way.
class Parcel final : public Completion {
 public:
  Parcel() = default;
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  // Bytes that the next send() carries, from `offset` of `from` to the same offset of `to`.
  void carry(LocalRegion& from, RemoteRegion& to, std::uint64_t offset, std::size_t bytes) noexcept {
    if (bytes == 0) return;
    offsets_[count_] = offset;
    runs_[count_] = {&from, &to, &offsets_[count_], &offsets_[count_], 1, bytes};
    bytes_ += bytes;
    ++count_;
  }
  // would_block: not now, send again.
  Status send(CarrierLink& carrier, ByteSpan message) {
    if (count_ == 0) return carrier.signal_own(message);
    const Bytes signal = CarrierLink::own_signal(message);
    under_way_ = true;
    const Status posted =
        carrier.endpoint().put({.runs = {runs_, count_}, .bytes = bytes_, .level = Complete::remote, .signal = signal}, this);
    if (!posted.ok()) under_way_ = false;
    return posted;
  }
  void reset() noexcept { count_ = bytes_ = 0; }
  [[nodiscard]] bool under_way() const noexcept { return under_way_; }
  void complete(Status) noexcept override { under_way_ = false; }  // a failure ends the carrier, which tells the link

 private:
  Run runs_[2];
  std::uint64_t offsets_[2] = {0, 0};
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
  bool under_way_ = false;
};

}  // namespace hmc::staging
