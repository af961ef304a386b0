// Simulated accelerators: one shared library per vendor's ABI, each with a copy of this core and so with devices, memory and
// streams of its own. Nothing here knows HMC; what a library offers is the vendor's names, as an application links them.
//
// Threads: every function may be called from any thread, as the vendors' may.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hmc::sim {

// Outcomes, which each ABI turns into its vendor's codes.
enum class Error {
  ok,
  invalid_value,
  out_of_memory,
  no_device,
  invalid_device,
  invalid_handle,  // a stream, an event or a handle of shared memory that is not (or no longer) one
  same_process,    // a handle opened in the process that made it
  not_ready,       // not an error: the work goes on
  already_registered,
  not_registered,
  peer_already_enabled,
  no_peer_access,  // the two devices do not reach each other
  not_found,
  illegal_address,  // a copy ran into memory that cannot be accessed; the stream stays failed
};

// What tells one library from another. Each library defines one.
struct Profile {
  const char* description;  // "simulated CUDA driver"
  const char* device_name;  // "Simulated CUDA device"
  const char* tag;          // at most 7 characters, in handles of shared memory: no library opens another's
  const char* visible;      // variable that selects and renumbers devices
  unsigned pci_bus;         // of the first device
};
extern const Profile profile;

// ---- devices: HMC_SIM_DEVICES of them, HMC_SIM_MEMORY bytes each, less what profile.visible leaves out ----
int device_count();
bool device_exists(int device);
std::string device_pci_address(int device);  // "0000:a0:00.0"
unsigned device_pci_bus(int device);
std::size_t device_memory();
// Of the calling thread, 0 at first; for runtimes that set a device rather than a context.
int current_device();
Error set_current_device(int device);
// Copies `text` into a caller's buffer of `bytes`, cut short to fit and ended by a zero.
Error copy_text(const std::string& text, char* target, int bytes);

// ---- peer access: remembered so that a second enabling errs; copies between devices of a library always work, also with
// HMC_SIM_PEERS=0, where none reaches another and its memory cannot be mapped for it ----
Error enable_peer_access(int from, int to);
bool can_access_peer(int from, int to);
// Whether `device` reaches memory of the device at that place, which may be invisible here.
bool reaches_bus(int device, unsigned pci_bus);

// ---- injected errors: HMC_SIM_FAIL="cuMemcpyAsync:3=700,..." (the third call from now returns 700), or hmcsim_fail() ----
// The code that this call of entry point `call` must return; 0: none. Counts the call.
int injected_error(const char* call);
void forget_injected_errors();

// A number of the environment; the fallback when it is unset or no number.
std::uint64_t environment_number(const char* name, std::uint64_t fallback);

}  // namespace hmc::sim
