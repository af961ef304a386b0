// Two ends of the verbs transport over the fabric (tests/cpp/fabric), and memory of simulated devices.
#pragma once

#ifdef HMC_FABRIC_LIBRARY

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "fabric/fabric.h"
#include "transport/one_transport.h"
#include "transport/verbs/region.h"

namespace hmc::testing {

inline const FabricControls& fabric() {
  static const FabricControls& controls = *[] {
    void* library = dlopen(HMC_FABRIC_LIBRARY, RTLD_NOW);
    return reinterpret_cast<const FabricControls* (*)()>(dlsym(library, "hmc_fabric_controls"))();
  }();
  return controls;
}

// Bytes in memory of any device, registered at a node.
class AnyArea {
 public:
  AnyArea(Node& node, std::size_t bytes, const Device& device) : node_(&node), memory_(Memory::allocate(bytes, device).value()) {
    auto made = node.transport->register_region({{memory_.data(), bytes, device}, memory_.block()});
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
    return is_put ? side_->endpoint->put(op, &done) : side_->endpoint->get(op, &done);
  }
  Side* side_;
  std::uint64_t offsets_[2];
  Run run_;
};

class OnFabric : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("HMC_VERBS_LIBRARY", HMC_FABRIC_LIBRARY, 1);
    setenv("HMC_CUDA_LIBRARY", HMC_SIM_CUDA, 1);
    setenv("HMC_MLU_LIBRARY", HMC_SIM_MLU, 1);
    fabric().mend_ports();
    fabric().configure({});
  }
  void TearDown() override {
    pair.reset();
    for (const char* name : {"HMC_NICS", "HMC_VERBS_RAILS", "HMC_VERBS_QUEUE_PAIRS", "HMC_VERBS_PEER_MEMORY"}) unsetenv(name);
    EXPECT_EQ(fabric().device_regions(), 0U);
  }
  void connect() {
    pair = Pair::create(factory_of("verbs"), reason);
    ASSERT_TRUE(pair) << reason;
  }
  // Done with that code.
  void ends(Move& move, Code code = Code::ok) {
    ASSERT_TRUE(pair->until([&] { return move.done.done(); }));
    EXPECT_EQ(move.done.status().code(), code) << move.done.status().str();
    EXPECT_EQ(move.done.count(), 1);
  }

  std::unique_ptr<Pair> pair;
  std::string reason;
};

}  // namespace hmc::testing

#endif
