#include "native/rank_communicator.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/thread.h"

namespace hmc::native {
namespace {

// While the device carries out calls: how often the library is asked whether it has failed.
constexpr auto look_interval = std::chrono::milliseconds(20);
// A call of the library that does not end in that time is taken to wait for other ranks.
constexpr auto call_patience = std::chrono::milliseconds(200);

Status aborted_status() { return {Code::closed, "the vendor's communicator was aborted"}; }

}  // namespace

// A call that the device carries out.
class RankCommunicator::Issued final : public Completion {
 public:
  Issued(std::shared_ptr<RankCommunicator> owner, Completion* done) : owner_(std::move(owner)), done_(done) {}
  void complete(Status status) noexcept override {
    Status ends = owner_->outcome(status);
    owner_->issued_ended();
    done_->complete(std::move(ends));
    delete this;
  }

 private:
  const std::shared_ptr<RankCommunicator> owner_;
  Completion* const done_;
};

Result<std::shared_ptr<RankCommunicator>> RankCommunicator::make(Library& library, const Device& device, int rank, int ranks) {
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  HMC_ASSIGN(auto queue, runtime->streams().open_queue(device.index()));
  const auto made = std::make_shared<RankCommunicator>(library, std::move(queue), Place{rank, ranks, device.index()});
  const auto thread = start_thread("hmc-ccl", [made] { made->work(); });
  if (!thread) return Status(Code::out_of_memory, "the system refuses a thread that calls " + std::string(library.name()));
  thread->detach();
  return made;
}

void RankCommunicator::add(Job job) {
  const std::scoped_lock lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void RankCommunicator::work() {
  std::unique_lock lock(mutex_);
  while (!closing_ || !jobs_.empty() || pending_ > 0) {
    if (!jobs_.empty()) {
      const Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    } else if (pending_ == 0) {
      changed_.wait(lock);
    } else if (changed_.wait_for(lock, look_interval) == std::cv_status::timeout) {
      lock.unlock();
      look_for_errors();
      lock.lock();
    }
  }
  const Handle left = aborts() ? nullptr : std::exchange(handle_, nullptr);
  lock.unlock();
  if (left != nullptr) {
    static_cast<void>(queue_->on_device([&] {
      library_.api().leave(left);
      return Status();
    }));
  }
  lock.lock();
  ended_ = true;
  changed_.notify_all();
}

void RankCommunicator::make_number(std::function<void(const Result<UniqueId>&)> made) {
  add([this, made = std::move(made)] {
    if (is_aborted()) return made(aborted_status());
    UniqueId id;
    const Api& api = library_.api();
    if (const int code = api.make_id(&id); api.meaning(code) != Meaning::success) {
      const Status why = library_.failure("it makes no number for a communicator", code, nullptr);
      fail(why);
      return made(why);
    }
    made(id);
  });
}

void RankCommunicator::connect(const UniqueId& id, std::function<void(const Status&)> connected) {
  add([this, id, connected = std::move(connected)] { join(id, connected); });
}

void RankCommunicator::join(const UniqueId& id, const std::function<void(const Status&)>& connected) {
  if (is_aborted()) return connected(aborted_status());  // the library would wait for ranks that may never come
  Handle made = nullptr;
  const Status joined = queue_->on_device([&]() -> Status {
    const int code = library_.api().join(&made, id, place_);
    if (library_.api().meaning(code) == Meaning::success) return {};
    return library_.failure("it makes no communicator", code, nullptr);
  });
  if (!joined.ok()) {
    fail(joined);
    return connected(joined);
  }
  bool unwanted = false;
  {
    const std::scoped_lock lock(mutex_);
    unwanted = aborts();
    if (!unwanted) handle_ = made;
  }
  if (!unwanted) return connected({});
  library_.api().abort(made);
  connected(aborted_status());
}

bool RankCommunicator::is_aborted() {
  const std::scoped_lock lock(mutex_);
  return aborts();
}

void RankCommunicator::start(const Call& call, Points after, Completion* done) {
  add([this, call, after = std::move(after), done] { issue(call, after, done); });
}

void RankCommunicator::issue(const Call& call, const Points& after, Completion* done) {
  bool unwanted = false;
  Handle handle = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    unwanted = aborts();
    if (!unwanted) ++pending_;
    calling_ = !unwanted;
    handle = handle_;
  }
  if (unwanted) return done->complete(outcome({}));
  auto* const issued = new Issued(shared_from_this(), done);
  const auto queue = [&](StreamHandle stream) -> Status {
    if (call.count == 0) return {};
    const int code = library_.api().start(call, handle, reinterpret_cast<Stream>(stream));
    if (!fails(code)) return {};
    return library_.failure("it does not start a collective", code, handle);
  };
  const Status started = queue_->run({after[0].get(), after[1].get()}, queue, issued);
  {
    const std::scoped_lock lock(mutex_);
    calling_ = false;
    changed_.notify_all();
  }
  if (started.ok()) return;
  // A part of it may run: once the communicator is aborted nothing does.
  fail(started);
  bool own_job = false;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return abort_ == Abort::done || abort_ == Abort::queued; });
    own_job = abort_ == Abort::queued;
  }
  if (own_job) abort_now();
  issued->complete(started);
}

bool RankCommunicator::fails(int code) const noexcept {
  const Meaning meaning = library_.api().meaning(code);
  return meaning != Meaning::success && meaning != Meaning::in_progress;
}

void RankCommunicator::look_for_errors() {
  Handle handle = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    if (handle_ == nullptr || aborts()) return;
    calling_ = true;
    handle = handle_;
  }
  const int code = library_.api().asynchronous_error(handle);
  Status why;
  if (fails(code)) why = library_.failure("it failed in a collective", code, handle);
  {
    const std::scoped_lock lock(mutex_);
    calling_ = false;
    changed_.notify_all();
  }
  if (!why.ok()) fail(why);
}

void RankCommunicator::fail(const Status& why) {
  {
    const std::scoped_lock lock(mutex_);
    if (aborts()) return;  // that is why
    abort_ = Abort::begun;
    failure_ = why;
  }
  if (why.code() != Code::closed) library_.avoid(why);
  abort_now();
}

void RankCommunicator::abort() {
  const std::scoped_lock lock(mutex_);
  if (aborts()) return;
  abort_ = Abort::begun;
  const auto thread = start_thread("hmc-ccl-abort", [self = shared_from_this()] { self->abort_now(); });
  if (thread) {
    thread->detach();
  } else {
    abort_ = Abort::queued;
    jobs_.push_front([this] { abort_now(); });
  }
  changed_.notify_all();
}

void RankCommunicator::abort_now() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, call_patience, [this] { return !calling_; });
  const Handle handle = std::exchange(handle_, nullptr);
  if (handle != nullptr) {  // else join() aborts what it gets
    lock.unlock();
    library_.api().abort(handle);
    lock.lock();
  }
  abort_ = Abort::done;
  changed_.notify_all();
}

void RankCommunicator::issued_ended() noexcept {
  const std::scoped_lock lock(mutex_);
  --pending_;
  changed_.notify_all();
}

Status RankCommunicator::outcome(const Status& of_device) {
  const std::scoped_lock lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (aborts()) return aborted_status();
  // "Unsupported" would send this rank alone another way.
  return of_device.code() == Code::unsupported ? Status(Code::device, std::string(of_device.message())) : of_device;
}

void RankCommunicator::close(Deadline deadline) {
  std::unique_lock lock(mutex_);
  closing_ = true;
  changed_.notify_all();
  while (!ended_ && !deadline.passed()) changed_.wait_for(lock, look_interval);
}

}  // namespace hmc::native
