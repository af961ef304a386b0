// The kernels that digest and convert pages of KV caches: cpp/src/device/kernels/pages.cu and what it needs, compiled for the host.
// The threads of a group are threads here too, so that what they do for each other is carried out, and seen by ThreadSanitizer.
#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "copies.h"
#include "device_code.h"
#include "kernels.h"

namespace hmc::sim {
namespace {
constexpr unsigned group_threads = 8;
std::mutex grids;  // one after the other, as a group's shared memory is static
// std::barrier yields some times before it sleeps: between loaded cores each yield takes as long as all that is ready.
class GroupBarrier {
 public:
  void arrive_and_wait() {
    std::unique_lock lock(mutex_);
    const unsigned mine = passed_;
    if (++arrived_ == group_threads) {
      arrived_ = 0;
      ++passed_;
      all_.notify_all();
    } else {
      all_.wait(lock, [&] { return passed_ != mine; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_;
  unsigned arrived_ = 0, passed_ = 0;
};
GroupBarrier& group_barrier() {
  static GroupBarrier instance;
  return instance;
}
}  // namespace
}  // namespace hmc::sim

#undef __syncthreads
#define __syncthreads() hmc::sim::group_barrier().arrive_and_wait()
#undef __shared__
#define __shared__ static
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // sums of lanes that there are not
#endif
// Each stands behind the one before.
#include "../src/device/kernels/reduce.cu"
#define HMC_PAGES_ALL
#include "../src/device/kernels/page_rows.cu"

#include "../src/device/kernels/pages.cu"
#pragma GCC diagnostic pop

namespace hmc::sim {
namespace {

using Cache = hmc_pages_kernel::Cache;
using Call = hmc_pages_kernel::Call;
using Words = std::vector<hmc_pages_kernel::Size>;

struct Row {
  std::string_view name;
  void (*kernel)(Call);
  std::size_t element;  // bytes
  bool converts;
};
#define HMC_DIGEST(bytes) {"hmc_digest_" #bytes, hmc_digest_##bytes, bytes, false}
#define HMC_CONVERT(type, bytes) {"hmc_convert_" #type, hmc_convert_##type, bytes, true}
constexpr std::array rows{Row HMC_DIGEST(1),
                          Row HMC_DIGEST(2),
                          Row HMC_DIGEST(4),
                          Row HMC_CONVERT(f32, 4),
                          Row HMC_CONVERT(f16, 2),
                          Row HMC_CONVERT(bf16, 2),
                          Row HMC_CONVERT(f8_e4m3fn, 1),
                          Row HMC_CONVERT(f8_e4m3fnuz, 1),
                          Row HMC_CONVERT(f8_e5m2, 1)};
constexpr std::array<std::size_t, 7> element_of_type{8, 4, 2, 2, 1, 1, 1};  // by number of hmc::DataType

// Where this library reaches the memory of a call. A thread that leaves its memory faults, and so does one that is not aligned to
// what it moves at a time.
class Reached {
 public:
  template <class T>
  bool take(T*& address, std::uint64_t count) {
    std::byte* found = nullptr;
    if (count == 0) return true;
    if (reinterpret_cast<std::uintptr_t>(address) % alignof(T) != 0) return false;
    if (reach(address, count * sizeof(T), &found, held_.emplace_back()) != Error::ok) return false;
    address = reinterpret_cast<T*>(found);
    return true;
  }
  // The cache's tables, and its buffers in `addresses`.
  bool take(Cache& cache, Words& addresses, std::uint64_t alignment) {
    if (!take(cache.buffers, cache.buffers_count) || !take(cache.blocks, cache.blocks_count)) return false;
    addresses.assign(cache.buffers, cache.buffers + cache.buffers_count);
    for (auto& address : addresses) {
      auto* at = reinterpret_cast<const char*>(address);
      if (address % alignment != 0 || !take(at, cache.buffer_bytes)) return false;
      address = reinterpret_cast<std::uintptr_t>(at);
    }
    cache.buffers = addresses.data();
    return true;
  }

 private:
  std::vector<std::shared_ptr<void>> held_;
};

void run_groups(void (*kernel)(Call), const Call& call, unsigned groups) {
  const std::lock_guard lock(grids);
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < group_threads; ++i) {
    threads.emplace_back([=, &call] {
      thread_index.x = i;
      group_size.x = group_threads;
      run_grid(groups, [&] {
        kernel(call);
        group_barrier().arrive_and_wait();  // the next group has the same shared memory
      });
    });
  }
}

Error run(const Row& row, const Call& given, unsigned groups) {
  Call call = given;
  Reached reached;
  Words from, to;
  const std::uint64_t places = call.order.counts[call.order.layer] * call.heads * call.entries;
  bool good = reached.take(call.source, from, call.elements * row.element);
  if (row.converts) {
    good = good && reached.take(call.target, to, call.elements * element_of_type[call.type]) &&
           reached.take(call.factors, call.order.counts[call.order.layer] * call.kvs);
  }
  if (call.digests != 0) {
    good = good && reached.take(call.keys, row.element == 4 ? std::uint64_t{2} * call.dims : call.dims) &&
           reached.take(call.sums, call.entries == 0 ? 1 : places);
  }
  if (!good) return Error::illegal_address;
  run_groups(row.kernel, call, groups);
  return Error::ok;
}

}  // namespace

Error prepare_pages(const std::string& name, const Launch& launch, std::function<Error()>& work) {
  for (const Row& row : rows) {
    if (row.name != name) continue;
    Call call;
    std::memcpy(&call, launch.arguments[0], sizeof call);
    const bool fits = call.rows > 0 && call.at_once > 0 && call.at_once <= hmc_pages_kernel::most_rows && call.lanes > 0 &&
                      call.lanes <= hmc_pages_kernel::most_lanes && call.elements > 0 && call.dims % call.elements == 0 &&
                      call.type > 0 && call.type < element_of_type.size() && call.order.layer < 4;
    if (!fits) return Error::invalid_value;
    work = [&row, call, groups = launch.groups] { return run(row, call, groups); };
    return Error::ok;
  }
  return Error::not_found;
}

}  // namespace hmc::sim
