// BufferHold: buffers that this process's own code reads or writes, as an operation does.
#pragma once

#include <memory>
#include <span>

#include "hmc/buffer.h"

namespace hmc {

// While one exists, close() of its buffers, of their Context, and of the remote ones at their owners waits for its end, as for an
// operation's. For code that without an operation reads what RemoteBuffer::loadable() gave, writes what storable() gave, or uses a
// ConnBuffer's memory. Hold it for milliseconds. Thread rules: any thread; it may end on another one.
class HMC_API BufferHold {
 public:
  // Buffers of one Context. Errors: closed; of remote ones also stale and peer_lost; invalid_argument (an empty handle, another
  // Context).
  static Result<BufferHold> take(std::span<const ConnBuffer> local, std::span<const RemoteBuffer> remote);

 private:
  class State;
  explicit BufferHold(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace hmc
