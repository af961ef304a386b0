// LibraryCall: a CollectiveWork whose messages only agree on a call of the vendor's library, which then carries it out. See
// native/part.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "collective/areas.h"
#include "collective/native/part.h"

namespace hmc {

class CollectiveWork;

// Owned by its CollectiveWork. Engine lock held throughout, but for the constructor.
class LibraryCall {
 public:
  // `buffers`: the caller's, which the library reads and writes.
  LibraryCall(CollectiveWork& work, native::Request request, Areas buffers);

  // Once, when the work has its number.
  void begin();
  // Once all messages before are over. True: there are more.
  bool next();
  // A wait step of the messages.
  void wait(std::uint32_t index);
  // A message has come.
  void received() noexcept { part_.received(); }
  // The collective has failed. What the device does for it ends soon.
  void stop() noexcept { part_.stop(); }
  void release() noexcept;  // of the buffers, as Areas::release()

  [[nodiscard]] bool over() const noexcept { return over_; }
  [[nodiscard]] bool waits() const noexcept { return part_.waits(); }
  [[nodiscard]] bool on_device() const noexcept { return part_.on_device(); }
  // Of the messages, before those of their steps.
  [[nodiscard]] std::uint8_t first_round() const noexcept { return part_.first_round(); }
  // What of this rank is missing; empty: messages, or other ranks' devices.
  [[nodiscard]] std::string_view awaited() const noexcept { return part_.on_device() ? std::string_view() : part_.awaited(); }

 private:
  [[nodiscard]] std::shared_ptr<CollectiveWork> work() const;
  void look_for_losses();
  void joined(std::uint32_t index, const Status& status);
  void ended(const Status& status);

  CollectiveWork& work_;
  Areas buffers_;
  native::Part part_;
  bool over_ = false;
};

}  // namespace hmc
