// fabric: a verbs library without cards. Its devices reach each other inside one process, by copies; it does what is told of
// failures.
#pragma once

#include <cstdint>

// How the devices are from now on. Unset members are zero.
struct FabricSettings {
  std::uint32_t devices = 0;      // 0: two
  std::uint32_t dma_buf = 0;      // 1: they take descriptors of device memory
  std::uint32_t peer_memory = 0;  // 1: they take its addresses
  std::uint32_t lying = 0;        // 1: they register device memory and move nothing
  std::uint32_t max_pairs = 0;    // queue pairs that can be; 0: any
  std::uint32_t max_regions = 0;  // memory regions that can be; 0: any
  std::uint32_t max_queues = 0;   // completion queues that can be; 0: any
  std::uint32_t max_entries = 0;  // of a completion queue; 0: any
  std::uint32_t down = 0;         // 1: a port that has failed says that it is down
  std::uint32_t no_reset = 0;     // 1: a queue pair that has left its first state does not return to it
};

// What a test does to them. Names of the library's own, beside those of libibverbs.
struct FabricControls {
  void (*configure)(const FabricSettings& settings);
  // After `work` more work requests the device's port fails: what is posted then is lost and reported as unanswered; `executed` of
  // it arrive all the same, with nobody told.
  void (*fail_port)(std::uint32_t device, std::uint64_t work, std::uint32_t executed);
  // After `work` more work requests the device hangs: it carries nothing, and reports nothing. `flushes` 0: what is posted on a
  // connection that ends does not come back either.
  void (*hang_port)(std::uint32_t device, std::uint64_t work, std::uint32_t flushes);
  // From now on the device's port takes so long for every work request, less than 100 ms; 0: as fast as it can.
  void (*slow_port)(std::uint32_t device, std::uint32_t microseconds);
  void (*mend_ports)();  // slow ones included
  std::uint64_t (*bytes_moved)(std::uint32_t device);
  std::uint32_t (*device_regions)();  // regions of device memory that are registered
  std::uint64_t (*immediates)();      // writes with an immediate that have arrived
};
extern "C" const FabricControls* hmc_fabric_controls();
