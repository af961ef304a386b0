#include "base/env.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "base/log.h"

namespace hmc {
namespace {

constexpr auto table = std::to_array<EnvVariable>({
    {"HMC_BLOCK_PROCESSORS", "0", "Multiprocessors that copy blocks; 0: all, 32 between devices from 64 KiB on. PCIe: at most 16."},
    {"HMC_CACHE", "", "Folder of figures of links that were measured, or `off`; unset: hmc in $XDG_CACHE_HOME or ~/.cache."},
    {"HMC_CHECK_MEMORY", "1", "0: allocate host memory without a look at how much there is."},
    {"HMC_CNCL_LIBRARY", "", "Path of Cambricon's CNCL (libcncl.so), as HMC_NCCL_LIBRARY."},
    {"HMC_CPU_THREADS", "", "CPU threads that convert and digest caches, 1 to 64; unset: half of several processors, 2 to 8."},
    {"HMC_CUDA_LIBRARY", "", "Path of NVIDIA's driver library (libcuda.so.1) to use and no other, or `off`."},
    {"HMC_DTK_RCCL_LIBRARY", "", "Path of the RCCL of Hygon's DTK (librccl.so.1), as HMC_NCCL_LIBRARY."},
    {"HMC_FUSED", "1", "0: collectives among the ranks of one host go by messages, not over memory that they share."},
    {"HMC_HIPRTC_LIBRARY", "", "The same for AMD's run-time compiler (libhiprtc.so), where libamdhip64.so does not hold it."},
    {"HMC_HYGON_LIBRARY", "", "The same for Hygon's DTK (libgalaxyhip.so)."},
    {"HMC_JOB_KEY", "", "Job key that control connections are authenticated with, as printed by `hmc keygen`."},
    {"HMC_LOCAL_RANK", "", "Set by `hmc run`: this process's number on its host."},
    {"HMC_LOCAL_SIZE", "", "Set by `hmc run`: processes of the job on this host."},
    {"HMC_LOG", "warning", "What is logged to stderr: error, warning, info or debug."},
    {"HMC_MCCL_LIBRARY", "", "Path of Moore Threads' MCCL (libmccl.so.2), as HMC_NCCL_LIBRARY."},
    {"HMC_MLU_LIBRARY", "", "The same for Cambricon's CNRT (libcnrt.so)."},
    {"HMC_MUSA_LIBRARY", "", "The same for Moore Threads' MUSA (libmusart.so)."},
    {"HMC_NCCL_LIBRARY", "", "Path of NVIDIA's NCCL (libnccl.so.2) for collectives to use and no other, or `off`."},
    {"HMC_NICS", "", "RDMA devices that verbs may use: `mlx5_0,mlx5_1` only these, `^mlx5_2` all but."},
    {"HMC_RANK", "", "Set by `hmc run`: this process's number in the job."},
    {"HMC_RCCL_LIBRARY", "", "The same for AMD's RCCL (librccl.so.1)."},
    {"HMC_RENDEZVOUS", "", "Where process 0 listens for the others: unix:/path or tcp://host:port. Set by `hmc run`."},
    {"HMC_ROCM_LIBRARY", "", "The same for AMD's HIP (libamdhip64.so)."},
    {"HMC_SHM_PTRACE", "1", "0: never copy between address spaces by process_vm_readv and process_vm_writev."},
    {"HMC_SHM_RING_BYTES", "524288", "Bytes of shared ring per direction and peer, at least 393216; taken as they are used."},
    {"HMC_SIM_DELAY_US", "0", "Simulated vendors: microseconds that every operation of a stream takes besides its work."},
    {"HMC_SIM_DEVICES", "2", "Simulated vendors: devices of each, 0 to 8."},
    {"HMC_SIM_FAIL", "", "Simulated vendors: calls that fail, `cuMemcpyAsync:3=700`: the third returns 700; commas between."},
    {"HMC_SIM_MEMORY", "1073741824", "Simulated vendors: bytes of memory per device."},
    {"HMC_SIM_PEERS", "1", "Simulated vendors: 0: no device reaches the memory of another."},
    {"HMC_SIZE", "", "Set by `hmc run`: processes of the job."},
    {"HMC_STAGING_CHUNK_BYTES", "4194304", "Bytes of one chunk of the staging transport, whole pages; 8 per peer and direction."},
    {"HMC_STAGING_SHARED", "1", "0: the staging transport carries its chunks on one host too, as between hosts."},
    {"HMC_TCP_BUFFER", "0", "Socket buffer of a tcp data connection in bytes; 0: left to the kernel."},
    {"HMC_TCP_STREAMS", "2", "Data connections per peer of the tcp transport, 1 to 16."},
    {"HMC_TORCH_NATIVE", "1", "0: torch's backend leaves no collective to NCCL or RCCL where all ranks have cards of one vendor."},
    {"HMC_TRANSPORTS", "", "Transports that may be used: `shm,tcp` only these, `^shm` all but."},
    {"HMC_UCX_LIBRARY", "", "Path of UCX's library (libucp.so.0) to use and no other, or `off`."},
    {"HMC_VERBS_LIBRARY", "", "Path of the verbs library (libibverbs.so.1) to use and no other, or `off`."},
    {"HMC_VERBS_PEER_MEMORY", "", "1: verbs also registers device memory by its address, 0: never; unset: ask the kernel."},
    {"HMC_VERBS_QUEUE_PAIRS", "1", "Connections per peer, direction and pair of ports, 1 to 8; at most 8 per peer in all."},
    {"HMC_VERBS_RAILS", "4", "Ports that together carry what goes to one peer, 1 to 8."},
    {"HMC_VERBS_RETRIES", "6", "Times verbs sends a packet again before the connection fails, 0 to 7 (7: for ever on Soft-RoCE)."},
    {"HMC_VERBS_SILENCE", "0", "Seconds until verbs gives up a card that reports nothing; 0: twice what it may take, at least 10."},
    {"HMC_VERBS_TIMEOUT", "17", "After 4.096 us times 2 to this power (0.5 s) verbs sends a packet again, 8 to 31."},
    {"HMC_VERBS_TRAFFIC_CLASS", "0", "Traffic class of RoCE packets, 0 to 255."},
});

bool in_table(std::string_view name) noexcept {
  return std::any_of(table.begin(), table.end(), [name](const EnvVariable& row) { return row.name == name; });
}

}  // namespace

std::span<const EnvVariable> env_table() noexcept { return table; }

std::optional<std::string> env_text(std::string_view name) {
  assert(in_table(name));
  static_cast<void>(in_table);
  const char* text = std::getenv(std::string(name).c_str());
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::string(text);
}

std::int64_t env_integer(std::string_view name, std::int64_t fallback, std::int64_t low, std::int64_t high) {
  const auto text = env_text(name);
  if (!text) return fallback;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  const bool is_vast = error == std::errc::result_out_of_range;
  if (is_vast) value = text->starts_with('-') ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
  if ((error != std::errc() && !is_vast) || end != text->data() + text->size()) {
    warn_once(name, std::string(name) + "=" + *text + " is not an integer; using " + std::to_string(fallback));
    return fallback;
  }
  if (value < low || value > high) {
    const std::int64_t clamped = std::clamp(value, low, high);
    warn_once(name, std::string(name) + "=" + *text + " is outside " + std::to_string(low) + ".." + std::to_string(high) +
                        "; using " + std::to_string(clamped));
    return clamped;
  }
  return value;
}

bool env_flag(std::string_view name, bool fallback) {
  const auto text = env_text(name);
  if (!text) return fallback;
  if (*text == "1" || *text == "true" || *text == "yes" || *text == "on") return true;
  if (*text == "0" || *text == "false" || *text == "no" || *text == "off") return false;
  warn_once(name, std::string(name) + "=" + *text + " is not a yes or no; using " + (fallback ? "1" : "0"));
  return fallback;
}

}  // namespace hmc
