// KV pages: scattered pages of several layers go to other places over there, in one batch with one notification.
#include <cstdint>
#include <vector>

#include "example.h"

using example::expect;
using example::must;

namespace {

constexpr std::size_t page = 16 << 10, pages = 64, layers = 4;

std::uint8_t content(std::size_t layer, std::size_t number, std::size_t i) {
  return static_cast<std::uint8_t>(layer * 89 + number * 7 + i + (i >> 8));
}

}  // namespace

int main() {
  return example::run_processes(2, [](const hmc::InitOptions& options) {
    const hmc::Communicator comm = must(hmc::Communicator::init(options));
    const hmc::Member me = must(comm.self());

    std::vector<hmc::ConnBuffer> cache;  // one per layer
    std::vector<std::vector<hmc::RemoteBuffer>> theirs;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      cache.push_back(must(comm.buffer(pages * page)));
      theirs.push_back(must(me.exchange(cache.back())));
    }

    // The prompt's pages lie anywhere in both caches: page i is at `here[i]` on rank 0 and at `there[i]` on rank 1.
    std::vector<std::uint64_t> here, there;
    for (std::size_t i = 0; i < pages / 2; ++i) {
      here.push_back(i * 29 % pages * page);
      there.push_back(i * 5 % pages * page);
    }

    if (me.rank() == 0) {
      std::vector<hmc::BlockPair> pairs;
      for (std::size_t layer = 0; layer < layers; ++layer) {
        auto* bytes = static_cast<std::uint8_t*>(cache[layer].memory().data());
        for (std::size_t n = 0; n < here.size(); ++n) {
          for (std::size_t i = 0; i < page; ++i) bytes[here[n] + i] = content(layer, n, i);
        }
        pairs.push_back({cache[layer], theirs[layer][1], here, there});
      }
      const hmc::BlockBatch batch = must(me.prepare_blocks(pairs, page));  // checked once, may be posted many times
      must(must(me.put_blocks(batch, {.notify = 1})).wait());
      std::printf("%zu pages, %zu bytes\n", batch.blocks(), batch.bytes());
    } else {
      must(me.wait_notify(0, 1));
      for (std::size_t layer = 0; layer < layers; ++layer) {
        const auto* bytes = static_cast<const std::uint8_t*>(cache[layer].memory().data());
        for (std::size_t n = 0; n < there.size(); ++n) {
          for (std::size_t i = 0; i < page; ++i) expect(bytes[there[n] + i] == content(layer, n, i), "a byte of a page");
        }
      }
    }
    must(comm.barrier());
  });
}
