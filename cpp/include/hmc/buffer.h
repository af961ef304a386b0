// Registered memory: ConnBuffer here, RemoteBuffer at a peer, and the descriptor between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hmc/deadline.h"
#include "hmc/device.h"
#include "hmc/export.h"
#include "hmc/memory.h"
#include "hmc/native.h"
#include "hmc/status.h"

namespace hmc {

class BufferState;        // comm layer: one registration
class RemoteBufferState;  // comm layer: one import

enum class Access : std::uint8_t { read = 1, read_write = 3 };  // what peers may do

// What a ConnBuffer gives away: names it, grants nothing by itself. Serialises to bytes of a versioned, bounded codec.
struct HMC_API Descriptor {
  std::uint64_t context_id[2] = {0, 0};
  std::uint64_t buffer_id = 0;
  std::uint64_t generation = 0;
  std::uint64_t size = 0;           // bytes
  std::uint64_t nonce[2] = {0, 0};  // unguessable; a forged descriptor is refused at import
  std::string device;               // "cpu", "cuda:0"
  Access access = Access::read_write;

  [[nodiscard]] std::vector<std::byte> serialise() const;
  // Errors: protocol (truncated, oversized, another version).
  static Result<Descriptor> parse(std::span<const std::byte> bytes);
};

// Registered memory that peers may read or write; a slice of one is one too. The last handle's end closes it, without waiting.
// Thread rules: any thread. Errors besides those named: closed after close(), invalid_argument on an empty handle.
class HMC_API ConnBuffer {
 public:
  ConnBuffer() noexcept = default;
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t offset() const noexcept { return offset_; }  // of this slice in the registration
  [[nodiscard]] Memory memory() const;                                   // this slice's bytes
  [[nodiscard]] Device device() const;
  [[nodiscard]] Access access() const;
  [[nodiscard]] bool read_only() const;  // over memory that this process may not write either
  // A view of [offset, offset + bytes). Errors: invalid_argument when out of range.
  [[nodiscard]] Result<ConnBuffer> slice(std::size_t offset, std::size_t bytes) const;
  // Names the whole registration (not the slice). Errors: closed.
  [[nodiscard]] Result<Descriptor> descriptor() const;
  // What programs that are not HMC need to reach this slice through `transport`'s own interface, one entry for each port or the
  // like; docs/reference/native.md lists the fields. Registers the memory with that transport if it was not. Whoever has them may
  // read or write, as `access` says, until close(). Errors: unsupported (the transport has none, or is not there), closed.
  [[nodiscard]] Result<std::vector<NativeFields>> native(std::string_view transport) const;
  // Ends the registration: returns when every importer has acknowledged or died and every receive of this process into the memory
  // that has its message has ended. Nothing lands after an ok return; a receive without a message stays posted and is not waited
  // for. Errors: timeout (the memory may still be written; HMC keeps its pages until then). Idempotent.
  Status close(Deadline deadline = Deadline::never()) const;
  [[nodiscard]] bool closed() const;

  ConnBuffer(std::shared_ptr<BufferState> state, std::size_t offset, std::size_t size) noexcept;
  [[nodiscard]] const std::shared_ptr<BufferState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<BufferState> state_;
  std::size_t offset_ = 0;
  std::size_t size_ = 0;
};

// Memory of a peer that the processor or a device here can load from, as OpenSHMEM's shmem_ptr() names it.
struct LoadableBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> mapping;  // keeps them loadable, also once the owner closed the buffer or died
};

// The same for stores too.
struct StorableBytes {
  std::span<std::byte> bytes;
  std::shared_ptr<const void> mapping;
};

// A peer's ConnBuffer as imported here; a slice of one is one too. It grants what the peer registered it for, until the peer closes
// it. Thread rules: any thread.
class HMC_API RemoteBuffer {
 public:
  RemoteBuffer() noexcept = default;
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }      // bytes
  [[nodiscard]] std::size_t offset() const noexcept { return offset_; }  // of this slice in the registration
  [[nodiscard]] Device device() const;                                   // at its owner
  [[nodiscard]] Access access() const;
  // A view of [offset, offset + bytes). Errors: invalid_argument when out of range.
  [[nodiscard]] Result<RemoteBuffer> slice(std::size_t offset, std::size_t bytes) const;
  // False once the owner closed it or died: operations then fail with stale or peer_lost.
  [[nodiscard]] bool alive() const;
  // This slice as `by` reaches it, if HMC allocated it in this process or has mapped it from another one of the host: CPU memory
  // for the CPU, memory of a device for a device here that operations have used it with. Else no bytes. That may change from call
  // to call: keep get() as the other way. No close() waits for loads outside of a BufferHold, no counter counts them, and the owner
  // may write meanwhile: synchronise with it by messages or notifications.
  [[nodiscard]] LoadableBytes loadable(const Device& by = Device::cpu()) const;
  // The same where the peer registered it for writes: else no bytes. Store within a BufferHold only, for milliseconds at a time:
  // no close() of the owner waits for other stores, which then land in memory that it may have freed.
  [[nodiscard]] StorableBytes storable(const Device& by = Device::cpu()) const;

  RemoteBuffer(std::shared_ptr<RemoteBufferState> state, std::size_t offset, std::size_t size) noexcept;
  [[nodiscard]] const std::shared_ptr<RemoteBufferState>& state() const noexcept { return state_; }

 private:
  [[nodiscard]] LoadableBytes mapped(const Device& by, bool to_write) const;

  std::shared_ptr<RemoteBufferState> state_;
  std::size_t offset_ = 0;
  std::size_t size_ = 0;
};

// Blocks between one buffer pair: block i goes from local_offsets[i] to remote_offsets[i] (bytes, relative to the slices).
struct BlockPair {
  ConnBuffer local;
  RemoteBuffer remote;
  std::span<const std::uint64_t> local_offsets;
  std::span<const std::uint64_t> remote_offsets;
};

class BlockBatchState;
// Many scattered blocks of one size over many buffer pairs: validated once, posted many times. Offsets are copied at preparation.
// Thread rules: any thread; immutable, so that several posts may be under way at once.
class HMC_API BlockBatch {
 public:
  BlockBatch() noexcept = default;
  explicit BlockBatch(std::shared_ptr<BlockBatchState> state) noexcept : state_(std::move(state)) {}
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  [[nodiscard]] std::size_t blocks() const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept;
  [[nodiscard]] const std::shared_ptr<BlockBatchState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<BlockBatchState> state_;
};

}  // namespace hmc
