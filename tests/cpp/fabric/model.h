// What the fabric is made of.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "fabric/shadow.h"

namespace hmc::fabric {

using Clock = std::chrono::steady_clock;

inline constexpr unsigned max_devices = 4;

struct Channel : ibv_comp_channel {
  std::deque<ibv_cq*> events;
};
struct Queue : ibv_cq {
  std::deque<ibv_wc> entries;
  bool armed = false;
};
struct Region : ibv_mr {
  std::unique_ptr<Shadow> shadow;
  unsigned access = 0;
  bool device = false;
};
struct Request {
  ibv_send_wr work;
  ibv_sge part;
  std::vector<std::byte> inlined;
  Clock::time_point first_try{};
};
struct Pair : ibv_qp {
  unsigned device = 0;
  ibv_qp_attr attributes{};
  std::uint32_t sent_from = 0, expected = 0;  // packet sequence numbers that they started from
  std::deque<Request> requests;
  std::deque<std::pair<ibv_recv_wr, ibv_sge>> receives;
};
struct Card {
  ibv_device device{};
  std::uint64_t moved = 0;
  bool failing = false;
  std::uint64_t work_until = 0;
  std::uint32_t executed_after = 0;
  bool hangs = false, flushes = true;
  std::uint64_t work_until_it_hangs = 0;
  std::chrono::microseconds slowness{};
};

struct Fabric {
  std::mutex mutex;
  FabricSettings settings{};
  std::array<Card, max_devices> cards;
  std::map<std::uint32_t, Pair*> pairs;
  std::map<std::uint32_t, Region*> regions;  // by key
  std::uint32_t last_pair = 100, last_key = 1000;
  unsigned device_regions = 0, queues = 0;
  std::uint64_t immediates = 0;
};

Fabric& fabric();
inline unsigned number_of(const ibv_context* context) { return static_cast<unsigned>(context->cmd_fd); }

// Everything posted comes back with an error. With the mutex held.
void break_pair(Pair& pair);

// The calls of the data path.
int poll_cq(ibv_cq* queue, int most, ibv_wc* out);
int req_notify_cq(ibv_cq* queue, int solicited_only);
int post_send(ibv_qp* handle, ibv_send_wr* work, ibv_send_wr** refused);
int post_recv(ibv_qp* handle, ibv_recv_wr* work, ibv_recv_wr** refused);

}  // namespace hmc::fabric
