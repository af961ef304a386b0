// PieceCopies: the copies between one slot's payload, which is contiguous host memory, and the pieces of registered memory that it
// holds.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transport/device_copies.h"
#include "transport/kit/served_regions.h"

namespace hmc::staging {

// Engine lock held throughout. Not movable: the runtime knows its address.
class PieceCopies final : public ServedCopies {
 public:
  PieceCopies() = default;
  ~PieceCopies() { clear(); }
  PieceCopies(const PieceCopies&) = delete;
  PieceCopies& operator=(const PieceCopies&) = delete;

  // The next piece; its bytes follow those of the piece before in the payload. `state` may be null (memory that outlives the copy).
  void add(const DeviceSpan& memory, std::uint64_t offset, std::size_t bytes, std::shared_ptr<ServedRegion> state);
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t pieces() const noexcept { return pieces_; }
  [[nodiscard]] bool empty() const noexcept { return pieces_ == 0; }
  // Devices involved, for pinning.
  [[nodiscard]] std::vector<Device> devices() const;
  void start(std::byte* payload, bool into_payload, const StreamPoint* after);
  // True once every copy has ended. Turns the runtimes.
  bool poll();
  void see_out() override;
  [[nodiscard]] Status outcome() { return copies_.outcome(); }
  void clear();

 private:
  // Pieces of one size in one memory: one operation of the runtime.
  struct Group {
    DeviceSpan memory;
    std::shared_ptr<ServedRegion> state;
    std::size_t block = 0;
    std::vector<std::uint64_t> memory_offsets;
    std::vector<std::uint64_t> payload_offsets;
    DeviceRuntime* runtime = nullptr;
  };
  std::vector<std::unique_ptr<Group>> groups_;
  std::size_t bytes_ = 0;
  std::size_t pieces_ = 0;
  DeviceCopies copies_;
};

}  // namespace hmc::staging
