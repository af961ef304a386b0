// What is behind ConnBuffer, RemoteBuffer and BlockBatch.
//
// The public handles share BufferState and RemoteBufferState. Those own nothing that needs the engine lock to be freed: the records
// that the Context keeps (Exposure, RemoteImport) are told of the last handle's end and taken down under the lock later.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/buffers/registration.h"
#include "hmc/buffer.h"
#include "transport/transport.h"

namespace hmc {

struct Route;
class ContextImpl;
class PeerImpl;
class EndpointSlot;

// The owner's record of one ConnBuffer. Engine lock held, except for the constants.
struct Exposure {
  std::uint64_t id = 0;          // slot number + 1
  std::uint64_t generation = 0;  // of that slot
  std::uint64_t nonce[2] = {0, 0};
  std::uint64_t size = 0;
  Access access = Access::read_write;
  bool read_only = false;  // this process may not write it either
  Device device;
  void* data = nullptr;
  std::atomic<bool> closed{false};             // no new operation, no new import; readable without the lock
  std::shared_ptr<Registration> registration;  // dropped when closed and quiet
  std::unordered_map<PeerImpl*, std::uint32_t> importers;
  std::uint32_t local_operations = 0;  // of this process, under way on the memory
  bool touched = false;                // by such, since an eviction last looked
};

class BufferState {
 public:
  BufferState(std::shared_ptr<ContextImpl> context, std::shared_ptr<Exposure> exposure, std::shared_ptr<Registration> registration);
  ~BufferState();  // any thread, lock held or not
  BufferState(const BufferState&) = delete;
  BufferState& operator=(const BufferState&) = delete;

  const std::shared_ptr<ContextImpl> context;
  const std::shared_ptr<Exposure> exposure;
  std::shared_ptr<Registration> registration;  // constant until the destructor moves it on
};

// The importer's record of one imported buffer. Engine lock held, except for the constants.
struct RemoteImport {
  RemoteImport() = default;
  RemoteImport(const Descriptor& d, const Device& where)
      : buffer_id(d.buffer_id),
        generation(d.generation),
        nonce{d.nonce[0], d.nonce[1]},
        size(d.size),
        access(d.access),
        device(where) {}
  std::uint64_t buffer_id = 0;
  std::uint64_t generation = 0;
  std::uint64_t nonce[2] = {0, 0};
  std::uint64_t size = 0;
  Access access = Access::read;
  Device device;
  struct Entry {
    EndpointSlot* slot = nullptr;
    std::uint64_t request = 0;  // what the owner knows it by; 0 for one's own buffers
    std::unique_ptr<RemoteRegion> region;
    std::vector<Device> prepared;  // devices here that operations have used, or may use, it with
    bool preparing = false;        // one thread is at it; others wait
    bool withdrawn = false;        // the owner wants it back: for no operation that has not begun
    bool draining = false;         // withdrawn, and what was begun is being flushed
    bool flushed = false;          // its record is retiring, and what was begun has been flushed
    [[nodiscard]] bool prepared_for(const Device& local) const noexcept {
      return std::find(prepared.begin(), prepared.end(), local) != prepared.end();
    }
  };
  std::vector<Entry> entries;  // one per transport that has carried an operation, besides withdrawn ones
  // Transports that did not reach it from a device here.
  std::vector<std::pair<Device, TransportSet>> refusals;
  std::atomic<bool> alive{true};
  Status dead;                   // why not alive
  std::uint32_t operations = 0;  // under way, preparations and BufferHolds included
  struct Holds {                 // BufferHolds
    std::uint32_t count = 0;
    // Of entries that went while it was held: once released, the owner's close would not wait.
    std::vector<std::uint64_t> releases;
  } holds;
  bool retiring = false;  // no operation will come; entries go once quiet
  bool flushing = false;
  bool acknowledge = false;  // the owner waits for `revoked`

  [[nodiscard]] TransportSet refused(const Device& local) const noexcept {
    for (const auto& [from, transports] : refusals) {
      if (from == local) return transports;
    }
    return 0;
  }
  void refuse(const Device& local, TransportSet transport) {
    for (auto& [from, transports] : refusals) {
      if (from == local) transports |= transport;
    }
    if (refused(local) == 0) refusals.emplace_back(local, transport);
  }
  void accept(const Device& local, TransportSet transport) noexcept {
    for (auto& [from, transports] : refusals) {
      if (from == local) transports &= ~transport;
    }
  }
  [[nodiscard]] Entry* find(const EndpointSlot* slot) noexcept {
    for (auto& entry : entries) {
      if (entry.slot == slot && !entry.withdrawn) return &entry;
    }
    return nullptr;
  }
  [[nodiscard]] Entry* find_region(const RemoteRegion* region) noexcept {
    for (auto& entry : entries) {
      if (entry.region.get() == region) return &entry;
    }
    return nullptr;
  }
};

class RemoteBufferState {
 public:
  RemoteBufferState(std::shared_ptr<ContextImpl> context, std::shared_ptr<PeerImpl> peer, std::shared_ptr<RemoteImport> record);
  ~RemoteBufferState();  // any thread, lock held or not
  RemoteBufferState(const RemoteBufferState&) = delete;
  RemoteBufferState& operator=(const RemoteBufferState&) = delete;

  const std::shared_ptr<ContextImpl> context;
  const std::shared_ptr<PeerImpl> peer;
  const std::shared_ptr<RemoteImport> record;
};

// Validated blocks between buffers here and buffers of one peer. Constant after preparation, except `resolved` (engine lock held).
class BlockBatchState {
 public:
  struct Pair {
    std::shared_ptr<BufferState> local;
    std::shared_ptr<RemoteBufferState> remote;
    std::vector<std::uint64_t> local_offsets;   // bytes in the registration
    std::vector<std::uint64_t> remote_offsets;  // bytes in the peer's registration
  };
  std::shared_ptr<ContextImpl> context;
  std::shared_ptr<PeerImpl> peer;
  std::size_t block = 0;
  std::size_t blocks = 0;
  bool writable = true;        // every remote may be written
  bool local_writable = true;  // every local buffer may be written
  std::vector<Pair> pairs;
  std::vector<BufferState*> locals;         // distinct
  std::vector<RemoteBufferState*> remotes;  // distinct

  // Runs grouped by the endpoint that carries them.
  struct Group {
    EndpointSlot* slot = nullptr;
    Route* route = nullptr;  // of the first of them
    std::vector<Run> runs;
    std::size_t bytes = 0;
  };
  std::shared_ptr<const std::vector<Group>> groups;  // those under way keep the one that they were posted with
  std::uint64_t resolved_epoch = 0;                  // PeerRoutes::epoch() that `groups` was made for; 0: not yet
};

}  // namespace hmc
