#include "comm/session/process_end.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace hmc {

std::unique_ptr<ProcessEnd> ProcessEnd::watch(std::shared_ptr<Engine> engine, int pid, std::function<void()> action) {
  UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process && errno == ESRCH) return nullptr;
  return std::unique_ptr<ProcessEnd>(new ProcessEnd(std::move(engine), std::move(process), std::move(action)));
}

ProcessEnd::ProcessEnd(std::shared_ptr<Engine> engine, UniqueFd process, std::function<void()> action)
    : engine_(std::move(engine)), process_(std::move(process)), action_(std::move(action)) {
  // Without descriptors it stays unknown: for ever rather than too early.
  if (process_ && !engine_->watch(process_.get(), EPOLLIN, *this).ok()) process_.reset();
}

ProcessEnd::~ProcessEnd() { stop(); }

void ProcessEnd::stop() {
  if (process_) engine_->unwatch(process_.get());
  process_.reset();
}

void ProcessEnd::on_ready(std::uint32_t) {
  stop();
  const auto action = std::exchange(action_, nullptr);
  if (action) action();
}

}  // namespace hmc
