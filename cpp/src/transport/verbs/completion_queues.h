// CompletionQueues: those of one port, which its queue pairs share, and how they wake the engine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "progress/engine.h"
#include "transport/verbs/api.h"

namespace hmc::verbs {

// The Nic owns it. Engine lock held, but for private queues.
class CompletionQueues final : private FdHandler {
 public:
  CompletionQueues(const Api& api, Engine& engine, const std::string& name) noexcept : api_(api), engine_(engine), name_(name) {}
  CompletionQueues(const CompletionQueues&) = delete;
  CompletionQueues& operator=(const CompletionQueues&) = delete;

  // Of an open port; `most_entries`: of one queue.
  Status open(ibv_context* context, int most_entries);
  // Before the port is closed. Not in a child process.
  void close();
  [[nodiscard]] int descriptor() const noexcept { return channel_->fd; }

  // A completion queue with room for `entries` more, which is theirs until released: no queue is ever overrun.
  struct Queue {
    ibv_cq* handle = nullptr;
    unsigned room = 0;
    unsigned leaving = 0;  // of queue pairs that are gone but may have left entries in it
  };
  Result<Queue*> reserve(unsigned entries);
  static void release(Queue& queue, unsigned entries) noexcept { queue.leaving += entries; }

  // For whoever polls it itself and returns it.
  [[nodiscard]] Result<std::unique_ptr<Queue>> create_private(unsigned entries) const;
  void destroy(std::unique_ptr<Queue> queue) const;

  using Handle = std::function<void(const ibv_wc&)>;
  // Hands over what has completed, as much as a poll does. `handle` may destroy endpoints, and call drain(). True if there was
  // anything.
  bool poll(const Handle& handle);
  // Hands over all that has completed, at most what the queues hold.
  void drain(const Handle& handle);
  // Asks for an event at the next completion. False: there are some already.
  bool arm();

 private:
  void on_ready(std::uint32_t events) override;
  Status watch();
  void unwatch();
  Status add(unsigned entries);
  // Takes what fits into a batch out of a queue, and hands it over. Returns how many that were.
  int hand_over(const Queue& queue, const Handle& handle);
  bool hand_over(const Handle& handle);

  const Api& api_;
  Engine& engine_;
  const std::string& name_;
  ibv_context* context_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  int usual_ = 0;  // entries of a queue
  int most_ = 0;
  std::vector<std::unique_ptr<Queue>> queues_;
  // Taken out of the queues and not handed over: those from `next_` on, in order. Kept here, so that a drain() within a handler
  // passes on what comes before what it finds itself.
  std::vector<ibv_wc> found_;
  std::size_t next_ = 0;
  bool watched_ = false;
};

}  // namespace hmc::verbs
