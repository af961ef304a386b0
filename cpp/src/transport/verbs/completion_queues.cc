#include "transport/verbs/completion_queues.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/log.h"

namespace hmc::verbs {
namespace {

constexpr int wanted_entries = 16 << 10;
constexpr int poll_batch = 32;
constexpr int batches_per_poll = 4;

}  // namespace

Status CompletionQueues::open(ibv_context* context, int most_entries) {
  context_ = context;
  most_ = most_entries;
  usual_ = std::min(wanted_entries, most_);
  channel_ = api_.create_comp_channel(context_);
  return channel_ == nullptr ? errno_status("making a completion channel", errno) : Status();
}

void CompletionQueues::close() {
  unwatch();
  for (const auto& queue : queues_) api_.destroy_cq(queue->handle);
  if (channel_ != nullptr) api_.destroy_comp_channel(channel_);
}

Status CompletionQueues::watch() {
  if (watched_) return {};
  HMC_TRY(engine_.watch(channel_->fd, EPOLLIN, *this));
  if (const Status status = engine_.watch(context_->async_fd, EPOLLIN, *this); !status.ok()) {
    engine_.unwatch(channel_->fd);
    return status;
  }
  watched_ = true;
  return {};
}

void CompletionQueues::unwatch() {
  if (!std::exchange(watched_, false)) return;
  engine_.unwatch(channel_->fd);
  engine_.unwatch(context_->async_fd);
}

// As large as it may be, so that many peers share one; smaller where the card or the memory that may be locked is short of room.
Status CompletionQueues::add(unsigned entries) {
  HMC_TRY(watch());
  const int least = static_cast<int>(entries);
  int size = std::max(usual_, least);
  ibv_cq* handle = nullptr;
  while (size <= most_) {
    handle = api_.create_cq(context_, size, nullptr, channel_, 0);
    if (handle != nullptr || size == least) break;
    size = std::max(size / 4, least);
  }
  if (handle != nullptr) {
    queues_.push_back(std::make_unique<Queue>(Queue{handle, static_cast<unsigned>(size), 0}));
    return {};
  }
  const std::string fewer = "; HMC_VERBS_QUEUE_PAIRS=1 and HMC_VERBS_RAILS=1 need least of them, HMC_NICS leaves cards out";
  if (size > most_) {
    return Status(Code::out_of_memory, name_ + ": its completion queues hold " + std::to_string(most_) +
                                           " entries at most, a connection needs " + std::to_string(entries) + fewer);
  }
  const int error = errno;
  Status refused = errno_status(name_ + ": making a completion queue of " + std::to_string(entries) +
                                    " entries (out of queues or of memory that may be locked?)" + fewer,
                                error);
  return error == ENOMEM || error == ENOSPC ? Status(Code::out_of_memory, std::string(refused.message()), error) : refused;
}

Result<CompletionQueues::Queue*> CompletionQueues::reserve(unsigned entries) {
  auto place = std::ranges::find_if(queues_, [&](const auto& queue) { return queue->room >= entries; });
  if (place == queues_.end()) {
    HMC_TRY(add(entries));
    place = queues_.end() - 1;
  }
  (*place)->room -= entries;
  return place->get();
}

Result<std::unique_ptr<CompletionQueues::Queue>> CompletionQueues::create_private(unsigned entries) const {
  ibv_cq* handle = api_.create_cq(context_, static_cast<int>(entries), nullptr, nullptr, 0);
  if (handle == nullptr)
    return errno_status(name_ + ": making a completion queue of " + std::to_string(entries) + " entries", errno);
  return std::make_unique<Queue>(Queue{handle, 0, 0});
}

void CompletionQueues::destroy(std::unique_ptr<Queue> queue) const {
  if (queue && !engine_.forked()) api_.destroy_cq(queue->handle);
}

bool CompletionQueues::hand_over(const Handle& handle) {
  const bool any = next_ != found_.size();
  while (next_ != found_.size()) {
    const ibv_wc one = found_[next_++];  // a handler may bring in others
    handle(one);
  }
  found_.clear();
  next_ = 0;
  return any;
}

int CompletionQueues::hand_over(const Queue& queue, const Handle& handle) {
  std::array<ibv_wc, poll_batch> batch;
  const int count = ibv_poll_cq(queue.handle, poll_batch, batch.data());
  if (count <= 0) return 0;
  found_.assign(batch.begin(), batch.begin() + count);
  next_ = 0;
  hand_over(handle);
  return count;
}

bool CompletionQueues::poll(const Handle& handle) {
  if (hand_over(handle)) return true;
  bool any = false;
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    Queue& queue = *queues_[i];
    for (int batch = 0; batch < batches_per_poll; ++batch) {
      const int count = hand_over(queue, handle);
      any = any || count > 0;
      if (count == poll_batch) continue;
      // Empty: those that left have left nothing behind.
      queue.room += std::exchange(queue.leaving, 0);
      break;
    }
  }
  return any;
}

void CompletionQueues::drain(const Handle& handle) {
  hand_over(handle);
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    int left = std::max(queues_[i]->handle->cqe, poll_batch);
    for (int count = poll_batch; count == poll_batch && left > 0; left -= count) count = hand_over(*queues_[i], handle);
  }
}

bool CompletionQueues::arm() {
  if (!found_.empty()) return false;
  for (const auto& queue : queues_) {
    if (ibv_req_notify_cq(queue->handle, 0) != 0) return false;
  }
  // What came before the request makes no event.
  std::array<ibv_wc, poll_batch> batch;
  for (const auto& queue : queues_) {
    const int count = ibv_poll_cq(queue->handle, poll_batch, batch.data());
    if (count > 0) found_.insert(found_.end(), batch.begin(), batch.begin() + count);
  }
  return found_.empty();
}

void CompletionQueues::on_ready(std::uint32_t events) {
  ibv_cq* queue = nullptr;
  void* unused = nullptr;
  while (api_.get_cq_event(channel_, &queue, &unused) == 0) api_.ack_cq_events(queue, 1);
  ibv_async_event event{};
  while (api_.get_async_event(context_, &event) == 0) {
    // What a queue pair meets shows in its completions; these concern everything on the port.
    const bool device_wide = event.event_type == IBV_EVENT_DEVICE_FATAL || event.event_type == IBV_EVENT_PORT_ERR ||
                             event.event_type == IBV_EVENT_PORT_ACTIVE || event.event_type == IBV_EVENT_CQ_ERR;
    if (device_wide) log(LogLevel::warning, name_ + ": " + api_.event_type_str(event.event_type));
    api_.ack_async_event(&event);
  }
  // Of a device that was removed the descriptors stay ready, and nothing comes any more: what was posted to it is given up by
  // RailKeeper::look().
  if ((events & (EPOLLERR | EPOLLHUP)) == 0) return;
  log(LogLevel::warning, name_ + ": the device was removed or reset; HMC uses it again in a new Context");
  unwatch();
}

}  // namespace hmc::verbs
