// The mean of all ranks' gradients, and its sharded form.
#include <algorithm>
#include <vector>

#include "example.h"

using example::expect;
using example::must;

namespace {

hmc::MemoryView view(std::vector<float>& values) { return {values.data(), values.size() * sizeof(float)}; }

}  // namespace

int main() {
  return example::run_processes(3, [](const hmc::InitOptions& options) {
    const hmc::Communicator comm = must(hmc::Communicator::init(options));
    const hmc::Member me = must(comm.self());
    const auto rank = static_cast<float>(me.rank());
    const hmc::Deadline soon = hmc::Deadline::after_seconds(30);

    // In place: every rank ends with the mean, and with the same bits.
    std::vector<float> gradient(3000, rank);
    must(me.all_reduce(view(gradient), view(gradient), {hmc::DataType::f32, hmc::ReduceOp::avg}, soon));
    expect(std::ranges::all_of(gradient, [](float each) { return each == 1; }), "the mean of 0, 1 and 2");

    // Sharded: each rank keeps the sum of its part, works on it, and gives it back to all.
    std::vector<float> shard(1000);
    must(me.reduce_scatter(view(shard), view(gradient), {hmc::DataType::f32}, soon));
    for (float& each : shard) each *= 2;
    const hmc::Work gathered = must(me.iall_gather(view(gradient), view(shard)));
    must(gathered.wait(soon));
    expect(std::ranges::all_of(gradient, [](float each) { return each == 6; }), "twice the sum of three");

    // Several at once: small ones take one exchange.
    std::vector<std::vector<float>> layers;
    for (int layer = 0; layer < 10; ++layer) layers.emplace_back(100, rank + static_cast<float>(layer));
    hmc::Batch batch = must(comm.batch());
    for (auto& layer : layers) must(me.all_reduce(view(layer), view(layer), {hmc::DataType::f32}, soon));
    must(batch.run(soon));
    expect(layers[3].front() == 12, "0 + 1 + 2, and 3 from each");

    // By an algorithm of the caller's choice, and with sums that are rounded once, in any order of the ranks.
    const hmc::CollectivePlan plan = must(me.plan("all_reduce", 400));
    must(me.all_reduce(view(layers[0]), view(layers[0]), {.exact = true}, soon, plan.algorithms.front()));
    expect(layers[0].front() == 9, "three times 0 + 1 + 2");
    must(comm.barrier());
  });
}
