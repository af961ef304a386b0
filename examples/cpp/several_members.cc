// One process may bring several Members to a job, each with its rank and buffers. Here all are CPU memory, so that it runs
// anywhere; with accelerators only the devices in the Topology change.
#include <cstdint>
#include <vector>

#include "example.h"

using example::expect;
using example::must;

int main() {
  // Who brings what, the same in every process: two Members in the first, one in the second.
  const hmc::Topology topology = must(hmc::Topology::parse(R"(hmc-topology 1
    host here
    card left   host=here device=cpu process=0
    card middle host=here device=cpu process=0
    card right  host=here device=cpu process=1
  )"));
  return example::run_processes(topology.processes(), [&](hmc::InitOptions options) {
    options.topology = topology;
    const hmc::Communicator comm = must(hmc::Communicator::init(options));
    const auto size = static_cast<std::size_t>(comm.size());

    // A collective takes every local Member in one call: called one after the other, each would wait for the next.
    std::vector<std::vector<std::uint64_t>> sends, receives;
    std::vector<hmc::MemberBuffers> shares;
    for (const hmc::Member& member : comm.local()) {
      auto& out = receives.emplace_back(size);
      auto& in = sends.emplace_back(size);
      for (std::size_t to = 0; to < size; ++to) in[to] = 100 * static_cast<std::uint64_t>(member.rank()) + to;
      const std::size_t bytes = size * sizeof(std::uint64_t);
      shares.push_back({member, {out.data(), bytes}, {in.data(), bytes}});
    }
    must(comm.all_to_all(shares, hmc::Deadline::after_seconds(30)));
    for (std::size_t i = 0; i < shares.size(); ++i) {
      for (std::size_t from = 0; from < size; ++from) {
        expect(receives[i][from] == 100 * from + static_cast<std::uint64_t>(shares[i].member.rank()), "a block of the all-to-all");
      }
    }

    const hmc::Topology found = must(comm.topology(hmc::Deadline::after_seconds(30)));
    expect(found.members().size() == 3 && found.members()[1]->name == "middle", "the topology");
    if (comm.local().front().rank() == 0) std::printf("%s", found.str().c_str());
    must(comm.barrier());
  });
}
