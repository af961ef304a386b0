// Texts that people, launchers, peers and files give: devices, transport filters, addresses, a launcher's environment, topologies,
// measured links. The first byte chooses the reader.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "collective/invitation.h"
#include "collective/launch.h"
#include "collective/link_figures.h"
#include "collective/rendezvous.h"
#include "comm/routing/filter.h"
#include "hmc/device.h"
#include "hmc/topology.h"
#include "progress/address.h"

namespace {

using namespace hmc;

void check(bool holds) {
  if (!holds) std::abort();
}

void device(std::string_view text) {
  const auto first = Device::parse(text);
  if (!first.ok()) return check(first.status().code() == Code::invalid_argument);
  const auto second = Device::parse(first->str());
  check(second.ok() && second.value() == first.value());
}

void filter(std::string_view text) {
  static const std::array<std::string, 3> known = {"local", "shm", "tcp"};
  const auto result = TransportFilter::parse(text, known);
  if (!result.ok()) return check(result.status().code() == Code::invalid_argument);
  for (const auto& name : known) check(!result->excludes(name) || (result->names(name) && !result->allows(name)));
}

void address(std::string_view text) {
  const auto meeting = parse_tcp(text);
  if (meeting.ok()) check(!meeting->host.empty() && !meeting->port.empty() && listen_address_for(*meeting).starts_with("tcp://"));
  static_cast<void>(reachable_addresses({std::string(text)}, text, true, Deadline::never()));
  const auto unix_socket = unix_socket_address(text);
  check(!unix_socket.ok() || (text.size() <= 107 && text.find('\0') == std::string_view::npos));
}

void slurm(std::string_view text) {
  check(first_slurm_host(text).size() <= text.size());
  for (const int node : {0, 1, 5, 1 << 30}) static_cast<void>(slurm_tasks_on(text, node));
}

// Lines of NAME=value, the name being one byte that chooses among those that launchers set.
void launcher(std::string_view text) {
  static constexpr auto names = std::to_array<std::string_view>({"HMC_RANK",
                                                                 "HMC_SIZE",
                                                                 "HMC_LOCAL_RANK",
                                                                 "HMC_LOCAL_SIZE",
                                                                 "HMC_RENDEZVOUS",
                                                                 "RANK",
                                                                 "WORLD_SIZE",
                                                                 "LOCAL_RANK",
                                                                 "LOCAL_WORLD_SIZE",
                                                                 "MASTER_ADDR",
                                                                 "MASTER_PORT",
                                                                 "TORCHELASTIC_RUN_ID",
                                                                 "OMPI_COMM_WORLD_RANK",
                                                                 "OMPI_COMM_WORLD_SIZE",
                                                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                                 "PMIX_NAMESPACE",
                                                                 "PMI_RANK",
                                                                 "PMI_SIZE",
                                                                 "MPI_LOCALRANKID",
                                                                 "MPI_LOCALNRANKS",
                                                                 "SLURM_PROCID",
                                                                 "SLURM_STEP_ID",
                                                                 "SLURM_STEP_NUM_TASKS",
                                                                 "SLURM_NTASKS",
                                                                 "SLURM_LOCALID",
                                                                 "SLURM_NODEID",
                                                                 "SLURM_STEP_NUM_NODES",
                                                                 "SLURM_STEP_TASKS_PER_NODE",
                                                                 "SLURM_STEP_NODELIST",
                                                                 "SLURM_JOB_ID",
                                                                 "SLURM_LAUNCH_NODE_IPADDR"});
  std::map<std::string_view, std::string> env;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.size() > 2) env[names[static_cast<unsigned char>(line[0]) % names.size()]] = line.substr(1);
  }
  const EnvReader reader = [&env](std::string_view name) -> std::optional<std::string> {
    const auto at = env.find(name);
    return at == env.end() ? std::nullopt : std::optional(at->second);
  };
  const auto info = read_launch(reader, [] { return Result<std::string>("/run/sockets"); }, "1234");
  if (!info.ok()) return check(info.status().code() == Code::invalid_argument);
  check(info->rank >= 0 && info->rank < info->size && info->local_rank >= 0 && info->local_rank < info->local_size);
  check(info->local_size <= info->size && (info->size == 1 || !info->rendezvous.empty()));
}

void topology(std::string_view text) {
  const auto first = Topology::parse(text);
  if (!first.ok()) return check(first.status().code() == Code::invalid_argument);
  const auto second = Topology::parse(first->str());
  check(second.ok() && *second == *first && second->str() == first->str());
}

void invitation(std::string_view text) {
  const auto first = Invitation::parse(text);
  if (!first.ok()) return check(first.status().code() == Code::invalid_argument);
  const auto second = Invitation::parse(first->str());
  check(second.ok() && second->str() == first->str() && second->ticket == first->ticket);
}

// As a cache file has them, and as a peer sends them.
void figures(std::string_view text) {
  static const std::array<RankPair, 2> pairs{RankPair{0, 1}, RankPair{1, 2}};
  static constexpr std::string_view key = "hmc 1\nrank 0 on host 0: a\n";
  if (const auto read = parse_cache(text, key, pairs)) {
    const auto again = parse_cache(cache_text(key, pairs, *read), key, pairs);
    check(again && *again == *read && read->pairs.size() == pairs.size());
    for (const PairFigures& pair : read->pairs) check(are_plausible(pair));
  }
  const ByteSpan bytes(reinterpret_cast<const std::byte*>(text.data()), text.size());
  if (const auto told = decode_link_figures(bytes, pairs.size())) {
    check(told->pairs.size() == pairs.size() && std::ranges::all_of(told->pairs, are_plausible));
    check(std::ranges::equal(encode(*told), bytes));
    check(!measurement_of(pairs, *told, true).str().empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 8) {
    case 0:
      device(text);
      break;
    case 1:
      filter(text);
      break;
    case 2:
      address(text);
      break;
    case 3:
      slurm(text);
      break;
    case 4:
      launcher(text);
      break;
    case 5:
      topology(text);
      break;
    case 6:
      invitation(text);
      break;
    default:
      figures(text);
      break;
  }
  return 0;
}
