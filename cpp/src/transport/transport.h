// The transport SPI. A new transport is one folder here: it moves bytes one-sidedly between registered regions, and carries small
// ordered signals. Everything else (two-sided messages, notifications, matching, path choice) is written once, in comm.
//
// Thread rules: register_region, LocalRegion::prepare and RemoteRegion::prepare run without the engine lock, on any thread; all
// else with it held. Nothing blocks. Nothing throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/blob.h"
#include "base/completion.h"
#include "base/pollable.h"
#include "device/runtime.h"
#include "hmc/buffer.h"
#include "hmc/native.h"
#include "hmc/status.h"
#include "hmc/work.h"
#include "memory/block.h"
#include "progress/engine.h"
#include "progress/listener.h"

namespace hmc {

class Transport;

// What a transport is told at creation.
struct TransportEnvironment {
  std::shared_ptr<Engine> engine;
  Listener* listener;                         // for transports with connections of their own
  std::vector<std::string> listen_addresses;  // where this Context listens, real ports filled in
  std::vector<Transport*> carriers;           // those made before that move CPU memory, for transports that build on others
};

struct Capabilities {
  bool available = true;           // can run in this process at all
  std::string reason;              // why not, or how it will be used
  std::size_t max_signal = 0;      // bytes of one signal (head and body together); at least 2048
  std::size_t eager_limit = 0;     // signals up to this size beat a rendezvous here
  bool rings = false;              // what was posted needs nobody to poll until an armed poll() is woken
  bool foreign_both_ends = false;  // a rendezvous is faster when sender puts one half while receiver gets the other
  bool shares_memory = false;      // moves bytes between processes of a host by memory that both map
  bool breaks = true;              // a connection may end while both processes live on; comm keeps signals for the next one
};

// Whether and how well a peer's domain can be reached.
struct Reach {
  bool ok = false;
  bool direct = true;  // no host staging
  bool encrypted = false;
  std::string detail;  // "mapped memfd", "4 streams"
  std::string reason;  // why not, or why it is good
  double latency_us = 0;
  double bandwidth = 0;   // bytes per second
  bool transient = true;  // also memory that is registered for one message
};

// Facts about the peer that path choice needs; from the handshake.
struct PeerDomain {
  bool same_process = false;
  bool same_host = false;  // a descriptor was passed
  int pid = 0;             // same_host only
  ByteSpan domain;         // the peer transport's own domain()
};

// Memory to register: a span, and the owner when HMC knows it.
struct RegionView {
  DeviceSpan span;
  std::shared_ptr<MemoryBlock> block = nullptr;  // null for foreign memory
  Access access = Access::read_write;            // what peers may do; the local side may always do both
  bool transient = false;                        // for one message only: cheap registration preferred over fast access
};

// What a transport without one says of its interface for programs that are not HMC.
inline Status no_native() { return {Code::unsupported, "no interface for programs other than HMC"}; }

// Registered local memory. Destruction deregisters: afterwards nothing of a peer lands in it where software is on the path.
class LocalRegion {
 public:
  virtual ~LocalRegion() = default;
  [[nodiscard]] const RegionView& view() const noexcept { return view_; }
  // What the peer's import_region needs. Called with the engine lock held; may carry descriptors.
  virtual Result<Blob> exported() = 0;
  // Slow first-use work (pinning) for operations with memory of `remote`, a device: once or more often, before the first of them,
  // on the posting thread, engine lock NOT held. The region works without it.
  virtual void prepare(const Device& /*remote*/) {}
  // Whether it takes from a budget that the vendor sets for all such regions of the process. Comm gives idle ones up for others.
  [[nodiscard]] virtual bool scarce() const noexcept { return false; }
  // Whether a peer of this host that imported it reads and writes it without software of this side: by a mapping, a system call or
  // a device's copy. Ending the connection does not stop that; only the peer's end of its side, or its death, does.
  [[nodiscard]] virtual bool peer_moves() const noexcept { return false; }
  // The same for programs that are not HMC: what ConnBuffer::native() says of `bytes` at `offset`.
  [[nodiscard]] virtual Result<std::vector<NativeFields>> native(std::size_t /*offset*/, std::size_t /*bytes*/) const {
    return no_native();
  }

 protected:
  explicit LocalRegion(RegionView view) noexcept : view_(std::move(view)) {}
  RegionView view_;
};

// A peer's region, imported through one Endpoint. Destruction forgets it (unmaps, ...).
class RemoteRegion {
 public:
  virtual ~RemoteRegion() = default;
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  // Slow first-use work (mapping, populating) for operations with memory of `local` here: before the first of them, on the
  // importing thread, engine lock NOT held, one call at a time. A region of a message is prepared with the lock held. Errors say
  // that this transport cannot reach the memory from that device; another one may.
  virtual Status prepare(const Device& /*local*/) { return {}; }
  // RemoteBuffer::loadable() of all of it, once it was prepared for `by`.
  [[nodiscard]] virtual LoadableBytes loadable(const Device& /*by*/) const { return {}; }
  // Whether stores to what loadable() gives are allowed, by the owner and by the mapping.
  [[nodiscard]] virtual bool writable() const { return false; }

 protected:
  explicit RemoteRegion(std::size_t bytes) noexcept : bytes_(bytes) {}
  std::size_t bytes_;
};

// `count` blocks of `block` bytes between one pair of regions: block i lies at local_offsets[i] and remote_offsets[i].
// Offsets were checked against both regions by comm (and are checked again by whoever's software executes a peer's request).
struct Run {
  LocalRegion* local = nullptr;
  RemoteRegion* remote = nullptr;
  const std::uint64_t* local_offsets = nullptr;
  const std::uint64_t* remote_offsets = nullptr;
  std::size_t count = 0;
  std::size_t block = 0;  // bytes
};

inline constexpr std::size_t short_put_bytes = 4096;

// One put or get: everything pointed to stays valid until `done` is completed, except `signal`, which the post copies.
struct TransferOp {
  std::span<const Run> runs;
  std::size_t bytes = 0;              // sum over runs
  Complete level = Complete::remote;  // put only; get completes when the data is in place
  ByteSpan signal;                    // put only: delivered to the peer's sink once this op's bytes are visible there
  StreamPoint* after = nullptr;       // of the local device: the bytes move after it
};

// The receiving side of an Endpoint. Engine lock held.
class EndpointSink {
 public:
  virtual void on_signal(ByteSpan signal) = 0;  // valid during the call; in the order the peer posted its signal() calls
  // The same for a signal that the peer can still write to: what is decided by its bytes is copied first. False: it was left alone,
  // and a copy goes to on_signal().
  virtual bool on_signal_in_place(ByteSpan /*signal*/) { return false; }
  // Once; every pending operation has been completed with it before. Never from within a post or connect(): transports that build
  // on others, which post in the middle of an operation of theirs, end all of them here.
  virtual void on_failed(const Status& reason) = 0;

 protected:
  ~EndpointSink() = default;
};

// One connection to one peer. Creation is symmetric: both sides make one, exchange address() over control, and connect().
// A post that returns an error was not accepted and never completes; would_block means: no room now, post again after a poll.
// One that finds the connection broken returns that, too, or is accepted and fails: the sink learns the reason afterwards.
// Destruction closes: pending operations complete with `closed` first.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual Result<Blob> address() = 0;
  // Operations may be posted once `done` completed. Errors: peer_lost, authentication, transport.
  virtual Status connect(const Blob& peer_address, Completion* done) = 0;
  virtual Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported) = 0;
  // As LocalRegion::exported, for a region that was registered for one message of this peer: in bytes alone, which go in a signal.
  // would_block: call again after a poll.
  virtual Result<Blob> describe(LocalRegion& region) { return region.exported(); }
  virtual Status put(const TransferOp& op, Completion* done) = 0;
  virtual Status get(const TransferOp& op, Completion* done) = 0;
  // A put that is over when this returns: the block of `run`'s first offsets is visible at the target and its signal (may be empty)
  // on its way. False: it cannot be; nothing was moved, post it with put(). For blocks of at most short_put_bytes.
  virtual bool put_short(const Run& /*run*/, ByteSpan /*signal*/) { return false; }
  // Ordered among signals; accepted means it will be delivered unless the peer dies. head + body <= max_signal, delivered as one.
  virtual Status signal(ByteSpan head, ByteSpan body) = 0;
  // Completes when every put posted before is remotely complete.
  virtual Status flush(Completion* done) = 0;
  // Stops the put or get that would complete `done`: ok means nothing of it is written after this returns and `done` was completed
  // with `cancelled`. unsupported: too late; it will complete by itself.
  virtual Status cancel(Completion* done) = 0;
  // The peer has ended its side, or its process is dead: delivers every signal of it that has arrived, also those behind the one
  // that a waiter waits for. Bounded, for the peer may go on sending. A signal may end the endpoint.
  virtual void receive_rest() = 0;
  // Signals that were accepted have not left this side. Destruction may discard them.
  [[nodiscard]] virtual bool has_unsent() const = 0;
};

// A connection to a program that is not HMC, which writes and reads registered memory through it. Destruction closes it: nothing
// comes in afterwards. Engine lock held.
class NativeLink {
 public:
  virtual ~NativeLink() = default;
  [[nodiscard]] virtual NativeFields fields() const = 0;  // what that program needs to connect its end
};

// Pollable: the engine turns every transport of a Context. Whoever creates a transport adds it to the engine, and removes it from
// there before destroying it (after its endpoints).
class Transport : public Pollable {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual Capabilities capabilities() const = 0;
  // Opaque, for the peer's reach(): host id, namespaces, versions. At most 1 KiB.
  [[nodiscard]] virtual Bytes domain() const = 0;
  // From memory on `local` here to memory on `remote` there.
  [[nodiscard]] virtual Reach reach(const PeerDomain& peer, const Device& local, const Device& remote) const = 0;
  // would_block: a vendor's budget has no room for it until other regions of that vendor's memory have gone (LocalRegion::scarce).
  virtual Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) = 0;
  virtual Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) = 0;
  // May outlive the transport, not the engine.
  virtual Result<std::unique_ptr<NativeLink>> connect_native(const NativeFields& /*peer*/) { return no_native(); }
};

struct TransportFactory {
  std::string_view name;
  Result<std::unique_ptr<Transport>> (*create)(const TransportEnvironment& environment);
  bool on_carriers = false;  // builds on the transports before it in the table; is none itself
  bool named_only = false;   // not used unless the user names it: what it loads or opens is not for every program
};

// At the end of a transport's main file, at global scope: HMC_TRANSPORT(shm, hmc::create_shm_transport);
// CMake collects the folder names. A transport that builds on others says HMC_TRANSPORT(ipc, hmc::create_ipc_transport, true).
#define HMC_TRANSPORT(name, ...)                             \
  extern const ::hmc::TransportFactory hmc_transport_##name; \
  constinit const ::hmc::TransportFactory hmc_transport_##name { #name, __VA_ARGS__ }

// The generated table, in order of preference at equal merit.
std::span<const TransportFactory* const> transport_factories() noexcept;

}  // namespace hmc
