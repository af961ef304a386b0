// Context: what one process is on the fabric.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hmc/buffer.h"
#include "hmc/deadline.h"
#include "hmc/export.h"
#include "hmc/memory.h"
#include "hmc/peer.h"
#include "hmc/status.h"

namespace hmc {

class ContextState;  // comm layer

enum class Progress : std::uint8_t {
  background,  // a thread moves bytes when nobody waits; asleep when there is nothing to do
  manual,      // only Context::progress() and waits move bytes
};

struct ContextOptions {
  // Where peers may come from. "unix" (always on: a socket in a private directory), "unix:/path", "tcp://127.0.0.1:0",
  // "tcp://[::]:7000" (dual stack). Listening beyond the host needs `key` or `insecure`.
  std::vector<std::string> listen;
  std::string key;               // job key text as `hmc keygen` prints it; empty: HMC_JOB_KEY, else none
  bool insecure = false;         // allow TCP beyond the host without a key: anyone who can connect is trusted
  std::string name;              // what peers see; default "host:pid"
  std::string transports;        // "shm,tcp" allows only these, "^shm" all but; empty: HMC_TRANSPORTS, else all
  bool direct_only = false;      // policy="direct": a staged path is an error
  double heartbeat_seconds = 5;  // silence after which a peer on another host is lost; 0.1 to 3600
  Progress progress = Progress::background;
  std::function<void(const Peer&)> on_joined;               // dispatcher thread
  std::function<void(const Peer&, const Status&)> on_left;  // dispatcher thread; ok when it said goodbye, peer_lost when it died
};

template <>
HMC_API Result<Peer> WorkOf<Peer>::take() const;

// Errors besides those named: closed, and invalid_argument on an empty handle.
// Thread rules: any thread. After fork() the child's copy is dead: its descriptors are closed and every call returns closed.
class HMC_API Context {
 public:
  Context() noexcept = default;
  explicit Context(std::shared_ptr<ContextState> state) noexcept;
  // Errors: invalid_argument (an address, key, heartbeat or transport that is none), authentication (beyond the host without a
  // key), transport (an address cannot be listened at), out_of_memory (no descriptor left).
  static Result<Context> create(const ContextOptions& options = {});
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }

  [[nodiscard]] std::string id() const;  // 32 hex digits, random
  [[nodiscard]] std::string name() const;
  [[nodiscard]] std::vector<std::string> addresses() const;  // what peers pass to connect(), real ports filled in

  // Connects to a listening Context: "unix:/path", "tcp://host:port". Connecting to an already connected Context returns that Peer.
  // Errors: authentication, timeout, peer_lost (refused), protocol (another version, named in the message), invalid_argument.
  [[nodiscard]] Result<Peer> connect(std::string_view address, Deadline deadline = Deadline::after_seconds(30)) const;
  // The next peer that connected to us and has not been accepted yet. Errors: timeout.
  [[nodiscard]] Result<Peer> accept(Deadline deadline = Deadline::never()) const;
  // The same as Works, which end at the deadline and need no thread. Works of iaccept() are served in turn; a peer that is not
  // taken returns to its queue with the last handle. A connection that a cancelled iconnect() had made already is kept in peers().
  [[nodiscard]] Result<WorkOf<Peer>> iconnect(std::string_view address, Deadline deadline = Deadline::after_seconds(30)) const;
  [[nodiscard]] Result<WorkOf<Peer>> iaccept(Deadline deadline = Deadline::never()) const;
  [[nodiscard]] std::vector<Peer> peers() const;  // connected now

  // Allocates and registers; the memory is zero-filled. Errors: out_of_memory, unsupported (no such device).
  [[nodiscard]] Result<ConnBuffer> buffer(std::size_t bytes, Device device = Device::cpu(),
                                          Access access = Access::read_write) const;
  // Registers in place. Registering the same bytes again is answered from the registration cache while HMC can see their lifetime.
  // Errors: invalid_argument (an empty Memory).
  [[nodiscard]] Result<ConnBuffer> register_memory(const Memory& memory, Access access = Access::read_write) const;

  // Publishes a buffer for lookup by any peer. Errors: invalid_argument when the name is taken or not of 1 to 255 bytes, or the
  // buffer is a slice or of another Context.
  Status publish(std::string_view name, const ConnBuffer& buffer) const;
  // Errors: invalid_argument when nothing is published under the name.
  Status unpublish(std::string_view name) const;

  // Connects a program that is not HMC, at whose own end `peer` is; docs/reference/native.md lists the fields. It can then use what
  // ConnBuffer::native() says, and is trusted as a peer is. Errors: invalid_argument (a field), unsupported (no such interface, the
  // transport is not there), transport.
  [[nodiscard]] Result<NativeConnection> connect_native(std::string_view transport, const NativeFields& peer) const;

  // Progress::manual: polls once; true if something moved.
  bool progress() const;
  // Named counters since creation: "put.bytes.shm", "bytes_staged", "messages.rendezvous", ...
  [[nodiscard]] std::map<std::string, std::uint64_t> counters() const;

  // Closes every peer, waits until what was posted has arrived, frees all. Messages and receives without a match end with closed.
  // Idempotent; also run by the last handle's end. Errors: timeout (something may be lost; or a stopped process may still write
  // memory of this one, and the call may be made again to go on waiting).
  Status close(Deadline deadline = Deadline::after_seconds(5)) const;
  [[nodiscard]] bool closed() const;

  [[nodiscard]] const std::shared_ptr<ContextState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<ContextState> state_;
};

// A fresh job key: 256 random bits as text ("hmc1-..."), for ContextOptions::key or HMC_JOB_KEY.
// Any thread.
HMC_API std::string generate_job_key();

// An environment variable that HMC reads.
struct Setting {
  std::string name;
  std::string fallback;  // what applies when unset
  std::string help;      // one sentence
};
HMC_API std::vector<Setting> list_settings();

// Where a library lies that HMC finds at run time, for the one that the environment variable names: in a language's package. Better
// known places come first: the variable itself, a copy that the process has loaded. Before the library is first needed.
HMC_API void suggest_library(std::string_view variable, std::string path);

}  // namespace hmc
