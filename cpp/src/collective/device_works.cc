#include "collective/device_works.h"

#include <atomic>
#include <utility>

namespace hmc {

// A runtime serves all Contexts of the process: a thread of another Context, which does not hold this engine's lock, may complete
// what a device carries out.
class DeviceEnd final : public Completion {
 public:
  void complete(Status status) noexcept override {
    status_ = std::move(status);
    over_.store(true, std::memory_order_release);
  }
  [[nodiscard]] bool over() const noexcept { return over_.load(std::memory_order_acquire); }
  [[nodiscard]] Status& status() noexcept { return status_; }

 private:
  Status status_;
  std::atomic<bool> over_{false};
};

namespace {

void release_kept_memory(const std::shared_ptr<Engine>& engine, DeviceRuntime& runtime) {
  if (!runtime.compute().keeps_memory()) return;
  const auto release = [&runtime](const void*) { runtime.compute().release_memory(); };
  engine->retire(std::shared_ptr<const void>(&runtime, release));  // without the lock
}

class DeviceWork final : public WorkState, private Pollable {
 public:
  DeviceWork(std::shared_ptr<Engine> engine, DeviceRuntime& runtime) noexcept : WorkState(std::move(engine)), runtime_(runtime) {}
  void start(const std::function<Status(Completion* done)>& start) {
    accepted();
    if (Status status = start(&end_); !status.ok()) return complete(std::move(status));
    engine()->add(*this);
    engine()->kick();
  }

 private:
  bool poll() override {
    if (!end_.over()) runtime_.poll();
    if (!end_.over()) return false;
    const auto self = shared_from_this();
    engine()->remove(*this);
    complete(std::move(end_.status()));
    return true;
  }
  bool arm() override { return false; }
  void released() noexcept override { release_kept_memory(engine(), runtime_); }

  DeviceRuntime& runtime_;
  DeviceEnd end_;
};

}  // namespace

std::shared_ptr<WorkState> work_on_device(const std::shared_ptr<Engine>& engine, DeviceRuntime& runtime,
                                          const std::function<Status(Completion* done)>& start) {
  const auto work = std::make_shared<DeviceWork>(engine, runtime);
  work->start(start);
  return work;
}

class OrderedWork final : public WorkState {
 public:
  OrderedWork(std::shared_ptr<Engine> engine, DeviceRuntime& runtime) noexcept : WorkState(std::move(engine)), runtime_(runtime) {}
  [[nodiscard]] Completion* completion() noexcept { return &end_; }
  [[nodiscard]] bool over() const noexcept { return end_.over(); }
  void end() { complete(std::move(end_.status())); }

 private:
  void released() noexcept override { release_kept_memory(engine(), runtime_); }

  DeviceRuntime& runtime_;
  DeviceEnd end_;
};

std::shared_ptr<WorkState> OrderedWorks::start(DeviceRuntime& runtime, const std::function<Status(Completion* done)>& start) {
  auto work = std::make_shared<OrderedWork>(engine_, runtime);
  work->accepted();
  if (Status status = start(work->completion()); !status.ok()) {
    work->complete(std::move(status));
    return work;
  }
  runtime_ = &runtime;
  asks_from_ = Clock::now() + unasked;
  pending_.push_back(work);
  if (!self_) {
    self_ = shared_from_this();
    engine_->add(*this);
  }
  engine_->kick();
  return work;
}

bool OrderedWorks::poll() {
  const auto due = [this] { return engine_->posting().looks() ? ++unasked_looks_ >= most_unasked : Clock::now() >= asks_from_; };
  const bool asks = pending_.size() >= asks_at_ || due();
  if (asks && !pending_.front()->over()) runtime_->poll();
  const auto self = self_;
  bool moved = false;
  while (!pending_.empty() && pending_.front()->over()) {
    const auto ended = std::move(pending_.front());
    pending_.pop_front();
    if (pending_.empty()) {
      engine_->remove(*this);
      self_ = nullptr;
    }
    ended->end();  // may start others here
    moved = true;
  }
  if (asks) {
    asks_at_ = pending_.size() + most_unasked;
    unasked_looks_ = 0;
  }
  return moved;
}

}  // namespace hmc
