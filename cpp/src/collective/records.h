// What the processes of a job tell each other, as plain values and pure functions, fuzzed.
// Every decoder takes untrusted bytes, bounds each length, and answers nullopt for anything that is not exactly one record.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/blob.h"
#include "control/channel.h"
#include "hmc/buffer.h"
#include "hmc/device.h"
#include "hmc/status.h"

namespace hmc {

inline constexpr std::uint32_t bootstrap_rounds = 2;
inline constexpr std::size_t max_bootstrap_value = 64 << 10;  // bytes per process and round
inline constexpr std::uint32_t max_processes = 65536;

namespace job {

inline constexpr std::size_t max_addresses = 32;
inline constexpr std::size_t max_devices = 256;
inline constexpr std::size_t max_text = 512;     // a name, an address
inline constexpr std::size_t max_reason = 2048;  // text of an error; longer ones are cut by their sender

// A process puts its value for a round on the board of process 0.
struct Arrival {
  std::uint32_t round = 0;
  std::uint32_t who = 0;
  std::uint32_t size = 0;     // of the job, as the sender was started
  std::uint32_t wait_ms = 0;  // until the sender gives up; 0: never
  ByteSpan value;             // of the decoded bytes
};
Bytes encode(const Arrival& m);
std::optional<Arrival> decode_arrival(ByteSpan in);

// The answer of process 0: everybody's value by process number, or why not.
struct Gathered {
  std::uint32_t round = 0;
  Status status;
  std::vector<Bytes> values;
};
Bytes encode(const Gathered& m);
std::optional<Gathered> decode_gathered(ByteSpan in);

// What one process tells the others in the first round.
struct Registration {
  ContextId id{};
  std::string name;
  std::string kernel;
  std::vector<std::string> addresses;
  std::vector<Device> devices;  // at least one
};
Bytes encode(const Registration& m);  // cuts the name, and addresses beyond the limit
std::optional<Registration> decode_registration(ByteSpan in);

struct ProcessLost {
  ContextId id{};
  std::string reason;
};
Bytes encode(const ProcessLost& m);
std::optional<ProcessLost> decode_process_lost(ByteSpan in);

// Why a group broke, and at which of its collectives: earlier ones still complete.
struct Breakage {
  static constexpr std::uint64_t every = ~std::uint64_t{0};
  std::uint64_t group_id = 0;
  std::uint64_t sequence = 0;  // `every`: a rank aborted the group, no collective completes any more
  Status reason;               // never ok; a code that this library does not know is read as `protocol`

  [[nodiscard]] bool aborts() const noexcept { return sequence == every; }
};
Bytes encode(const Breakage& m);
std::optional<Breakage> decode_breakage(ByteSpan in);

// A slice of a registration as exchange() sends it; a rank that has none sends why, so that nobody waits for it.
struct Offer {
  Status error;
  Descriptor descriptor;
  std::uint64_t offset = 0, size = 0;
};
Bytes encode(const Offer& m);
std::optional<Offer> decode_offer(ByteSpan in);

// What every rank says in a split.
struct Wish {
  int color = 0, key = 0;
  std::uint32_t scope = 0;  // proposed for the first new group; that of rank 0 counts
};
Bytes encode(const Wish& m);
std::optional<Wish> decode_wish(ByteSpan in);

// What processes say to each other while a group shrinks (collective/agreement.h).
enum class ShrinkKind : std::uint8_t {
  ask = 1,   // by the coordinator: join
  join,      // you are the coordinator
  propose,   // `processes`, `scope`: prepare these
  accept,    // prepared
  decline,   // the scope is taken here
  commit,    // `processes`, `scope`: agreed
  awaiting,  // by the coordinator, to a process that joins again: `processes` are missing
  left,      // the sender closed its Communicator
  refuse,    // `reason`: the receiver takes no part
  give_up,   // `reason`: the shrink fails everywhere
};
struct Shrink {
  ShrinkKind kind = ShrinkKind::ask;
  Status reason = {};                         // of refuse and give_up: never ok
  std::uint64_t group_id = 0;                 // of the group that shrinks
  std::uint32_t instance = 0;                 // which shrink of it, from 0
  std::uint32_t attempt = 0;                  // of the proposal that is proposed, accepted or declined
  std::uint32_t scope = 0;                    // of the new group
  std::vector<std::uint32_t> processes = {};  // ascending
};
Bytes encode(const Shrink& m);
std::optional<Shrink> decode_shrink(ByteSpan in);

// What processes of a group say to each other while it grows (collective/growths.h).
enum class GrowKind : std::uint8_t {
  ask = 1,  // by the coordinator: the call waits for you
  join,     // `value`: the sender's Registration, with the devices of its ranks
  left,     // the sender closed its Communicator
  give_up,  // `reason`: the growth fails everywhere
};
struct Grow {
  GrowKind kind = GrowKind::ask;
  std::uint64_t group_id = 0;  // of the group that grows
  std::uint32_t instance = 0;  // which growth of it, from 0
  std::uint32_t wait_ms = 0;   // of join: until the sender gives up; 0: never
  Bytes value = {};
  Status reason = {};  // of give_up: never ok
};
Bytes encode(const Grow& m);
std::optional<Grow> decode_grow(ByteSpan in);

// The secret of an invitation.
using Ticket = std::array<std::byte, 32>;

// A newcomer applies at the process that invited it.
struct Application {
  Ticket ticket{};
  std::uint32_t wait_ms = 0;  // until the sender gives up; 0: never
  Bytes value = {};           // its Registration
};
Bytes encode(const Application& m);
std::optional<Application> decode_application(ByteSpan in);

// The answer to join and Application: who forms the new group, or why there is none.
struct Table {
  std::uint64_t group_id = 0;  // of the group that grows
  std::uint32_t instance = 0;
  std::uint32_t old_size = 0;  // ranks; those of newcomers follow
  Status status = {};
  std::vector<Registration> processes = {};  // by number: those of the group by their first rank, then the newcomers
  std::vector<std::uint32_t> owners = {};    // by rank: a number; the ranks of a process take its devices in turn
};
// Every process has at least one rank, one for each of its devices.
[[nodiscard]] bool owns_all(const Table& m);
Bytes encode(const Table& m);
std::optional<Table> decode_table(ByteSpan in);

}  // namespace job
}  // namespace hmc
