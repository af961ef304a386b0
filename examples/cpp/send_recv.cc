// Two-sided messages: blocking and not, by tag, from anybody.
#include <array>
#include <numeric>
#include <vector>

#include "example.h"

using example::expect;
using example::must;

int main() {
  return example::run_processes(3, [](const hmc::InitOptions& options) {
    const hmc::Communicator comm = must(hmc::Communicator::init(options));
    const hmc::Member me = must(comm.self());

    // Around the ring, without blocking: receive first, so that large messages go straight to their place.
    const int next = (me.rank() + 1) % me.size(), previous = (me.rank() + me.size() - 1) % me.size();
    std::vector<int> out(100'000), in(100'000);
    std::iota(out.begin(), out.end(), me.rank());
    const std::array works{
        must(me.irecv({in.data(), in.size() * sizeof(int)}, previous, 1)),
        must(me.isend({out.data(), out.size() * sizeof(int)}, next, 1)),
    };
    must(hmc::wait_all(works, hmc::Deadline::after_seconds(30)));
    for (int i = 0; i < 100'000; ++i) expect(in[static_cast<std::size_t>(i)] == previous + i, "a value from the left neighbour");

    // Everybody reports to rank 0, which takes reports as they come.
    if (me.rank() != 0) {
      int report = me.rank() * 11;
      must(me.send({&report, sizeof report}, 0, 2));
    } else {
      int sum = 0;
      for (int i = 1; i < me.size(); ++i) {
        int report = 0;
        const hmc::MessageInfo info = must(me.recv({&report, sizeof report}, hmc::any_source, 2));
        expect(report == info.source * 11, "a report");
        sum += report;
      }
      std::printf("reports add up to %d\n", sum);
    }
    must(comm.barrier());
  });
}
