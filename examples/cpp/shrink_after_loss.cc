// A rank is killed, the others go on without it.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "example.h"

using example::expect;
using example::must;

namespace {

template <class T>
hmc::MemoryView view(std::vector<T>& values) {
  return {values.data(), values.size() * sizeof(T)};
}

}  // namespace

int main() {
  constexpr int ranks = 3, victim = 1;
  const auto body = [](const hmc::InitOptions& options) {
    hmc::Communicator comm = must(hmc::Communicator::init(options));
    for (std::int64_t step = 0; step < 100;) {
      if (options.rank == victim && step == 40) kill(getpid(), SIGKILL);
      std::vector<double> values(1000, static_cast<double>(step));
      const auto soon = hmc::Deadline::after_seconds(30);
      const hmc::Status reduced = must(comm.self()).all_reduce(view(values), view(values), {hmc::DataType::f64}, soon);
      if (reduced.code() == hmc::Code::peer_lost) {
        comm = must(comm.shrink(soon));
        // A rank may have finished the step in which another one got the error: all repeat the earliest.
        std::vector<std::int64_t> earliest{step};
        must(must(comm.self()).all_reduce(view(earliest), view(earliest), {hmc::DataType::i64, hmc::ReduceOp::min}, soon));
        step = earliest[0];
        continue;
      }
      must(reduced);
      const double sum = static_cast<double>(step * comm.size());
      expect(std::ranges::all_of(values, [sum](double each) { return each == sum; }), "the sum of all that are left");
      ++step;
    }
    expect(comm.size() == ranks - 1, "one rank is lost");
    must(comm.barrier(hmc::Deadline::after_seconds(30)));
  };
  return example::run_processes(ranks, body, 1);
}
