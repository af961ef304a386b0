// Memory of any device, registered at one end of a pair, and single transfers of it.
#pragma once

#include <memory>
#include <vector>

#include "transport/pair.h"

namespace hmc::testing {

// Bytes in memory of any device, registered at a node.
class AnyArea {
 public:
  AnyArea(Node& node, std::size_t bytes, const Device& device, Access access = Access::read_write)
      : node_(&node), memory_(Memory::allocate(bytes, device).value()) {
    auto made = node.transport->register_region({{memory_.data(), bytes, device}, memory_.block(), access});
    status = made.status();
    if (made.ok()) region_ = std::move(*made);
  }
  ~AnyArea() { deregister(); }
  void deregister() {
    const auto lock = node_->engine->lock();
    region_.reset();
  }
  void fill(std::uint64_t seed) const {
    HMC_EXPECT_OK(memory_.copy_from_host(pattern(memory_.size(), seed).data(), memory_.size()));
  }
  [[nodiscard]] std::vector<std::byte> bytes() const {
    std::vector<std::byte> out(memory_.size());
    HMC_EXPECT_OK(memory_.copy_to_host(out.data(), out.size()));
    return out;
  }
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size(); }
  [[nodiscard]] LocalRegion* region() const noexcept { return region_.get(); }
  [[nodiscard]] Result<std::unique_ptr<RemoteRegion>> imported(Side& side) const {
    Blob blob;
    {
      const auto lock = node_->engine->lock();
      HMC_ASSIGN(blob, region_->exported());
    }
    const auto lock = side.lock();
    return side.endpoint->import_region(blob);
  }

  Status status;

 private:
  Node* node_;
  Memory memory_;
  std::unique_ptr<LocalRegion> region_;
};

// One put or get of `bytes` between two offsets.
class Move {
 public:
  Move(Side& side, const AnyArea& local, RemoteRegion& remote, std::size_t bytes, std::uint64_t local_offset = 0,
       std::uint64_t remote_offset = 0)
      : side_(&side), offsets_{local_offset, remote_offset}, run_{local.region(), &remote, &offsets_[0], &offsets_[1], 1, bytes} {}
  Move(const Move&) = delete;
  Move& operator=(const Move&) = delete;
  Status put(ByteSpan signal = {}, StreamPoint* after = nullptr) { return post(true, signal, after); }
  Status get() { return post(false, {}, nullptr); }
  Done done;

 private:
  Status post(bool is_put, ByteSpan signal, StreamPoint* after) {
    TransferOp op;
    op.runs = {&run_, 1};
    op.bytes = run_.block;
    op.signal = signal;
    op.after = after;
    const auto lock = side_->lock();
    const Posting posting(side_->sink);
    return is_put ? side_->endpoint->put(op, &done) : side_->endpoint->get(op, &done);
  }
  Side* side_;
  std::uint64_t offsets_[2];
  Run run_;
};

}  // namespace hmc::testing
