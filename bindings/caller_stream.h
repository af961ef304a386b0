// CallerStream: the order of a collective among what is queued on a caller's stream.
#pragma once

#include <initializer_list>

#include "common.h"

namespace hmc::bindings {

// The `stream=` of a call that returns a Work.
class CallerStream {
 public:
  // Null or None: the caller gives no stream.
  explicit CallerStream(py::handle stream) : given_(stream && !stream.is_none()), handle_(stream_of(stream)) {}
  // The call starts behind what the stream has now.
  [[nodiscard]] MemoryView of(MemoryView view) const {
    if (!given_ || view.bytes == 0) return view;
    if (view.device.is_cpu()) refuse("stream= orders a call on device memory, and an array is CPU memory; pass none");
    view.stream = handle_;
    return view;
  }
  // The Work that `post` returns. What comes on the stream later waits for it: the first collective of a group may wait until it is
  // known who carries it out.
  template <class Post>
  [[nodiscard]] Work start(std::initializer_list<MemoryView> views, Post post) const {
    return interruptible([&]() -> Result<Work> {
      HMC_ASSIGN(Work work, post());
      HMC_TRY(join(work, views));
      return work;
    });
  }

 private:
  Status join(const Work& work, std::initializer_list<MemoryView> views) const {
    for (const MemoryView& view : views) {
      if (given_ && view.bytes != 0) return work.join(view.device, handle_);
    }
    return {};
  }

  const bool given_;
  const StreamHandle handle_;
};

}  // namespace hmc::bindings
