// StreamWatch: calls back once the work that was queued on callers' streams is over.
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "base/pollable.h"
#include "device/runtime.h"
#include "progress/engine.h"

namespace hmc {

using StreamPoints = std::array<std::shared_ptr<StreamPoint>, 2>;

// Whether all points are reached; null ones are. Errors: of the stream's own work.
Result<bool> all_reached(const StreamPoints& points);

// Engine lock held throughout.
class StreamWatch final : public std::enable_shared_from_this<StreamWatch>, private Pollable {
 public:
  StreamWatch(std::shared_ptr<Engine> engine, StreamPoints points, std::function<void(const Status&)> done)
      : engine_(std::move(engine)), points_(std::move(points)), done_(std::move(done)) {}
  // Keeps itself until it has called `done`, from the engine.
  void start();

 private:
  bool poll() override;
  bool arm() override { return false; }  // nothing wakes a thread when a stream gets there

  const std::shared_ptr<Engine> engine_;
  const StreamPoints points_;
  const std::function<void(const Status&)> done_;
  std::shared_ptr<StreamWatch> self_;
};

}  // namespace hmc
