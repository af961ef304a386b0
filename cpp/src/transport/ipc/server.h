// Server: carries out what the peer asks for: copies between its announced memory and regions here, by the regions' device.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "transport/device_copies.h"
#include "transport/ipc/announced.h"
#include "transport/ipc/messages.h"
#include "transport/ipc/shared.h"

namespace hmc::ipc {

// Engine lock held.
class Server {
 public:
  explicit Server(std::shared_ptr<Shared> shared) noexcept : shared_(std::move(shared)) {}

  // Errors: protocol; all else is the answer.
  Status on_ask(Ask ask, AnnouncedTable& memories, DescriptorChannel& channel);
  [[nodiscard]] bool busy() const noexcept { return !tasks_.empty(); }
  struct Finished {
    Answer answer;
    Bytes signal;  // for the user, now that the bytes are visible
  };
  // Moves on; what ended is appended. True if anything moved.
  bool poll(std::vector<Finished>& finished);
  // Sees out what devices copy, and does no more.
  void stop() { tasks_.clear(); }

 private:
  // Not movable: the runtime knows its address, and the region too.
  class Task final : public ServedCopies {
   public:
    explicit Task(Ask ask);
    ~Task();
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    Status check(const ServedRegions& served);
    // True once nothing is under way and nothing left to start.
    bool advance(Worker& worker, bool& moved);
    void see_out() override;

    Ask ask;
    std::shared_ptr<AnnouncedMemory> memory;
    Status failure;

   private:
    bool start(Worker& worker);

    Run run_;
    RunCursor cursor_;
    std::shared_ptr<ServedRegion> region_;
    DeviceRuntime* runtime_ = nullptr;
    DeviceCopies copies_;
  };
  const std::shared_ptr<Shared> shared_;
  std::list<Task> tasks_;
};

}  // namespace hmc::ipc
