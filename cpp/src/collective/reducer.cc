#include "collective/reducer.h"

#include <utility>

#include "base/per_process.h"
#include "progress/worker.h"

namespace hmc {
namespace {

// Never ends: the last reference to a Work, and with it to a whole job, may be dropped on its thread.
constinit PerProcess<Worker> reducer;

}  // namespace

std::shared_ptr<WorkState> run_in_background(const std::shared_ptr<Engine>& engine, std::function<Status()> job) {
  const auto work = std::make_shared<WorkState>(engine);
  work->accepted();
  Status begun = reducer.get().run([work, job = std::move(job)] {
    Status status = job();
    const auto lock = work->engine()->lock();
    work->complete(std::move(status));
  });
  if (!begun.ok()) work->complete(std::move(begun));
  return work;
}

std::shared_ptr<WorkState> reduce_in_background(const std::shared_ptr<Engine>& engine, void* target,
                                                std::vector<const void*> sources, std::size_t bytes, const ReduceStep& step) {
  return run_in_background(engine, [target, sources = std::move(sources), bytes, step] {
    reduce_on_cpu(target, sources, bytes / size_of(step.type), step);
    return Status();
  });
}

}  // namespace hmc
