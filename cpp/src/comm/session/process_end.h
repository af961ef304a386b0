// ProcessEnd: tells when a process of this host is dead, where no channel is left to tell it.
#pragma once

#include <functional>
#include <memory>

#include "base/fd.h"
#include "progress/engine.h"

namespace hmc {

// Engine lock held throughout.
class ProcessEnd final : public FdHandler {
 public:
  // Null if the process is dead already. `action` may end this object later, not inside the call.
  static std::unique_ptr<ProcessEnd> watch(std::shared_ptr<Engine> engine, int pid, std::function<void()> action);
  ~ProcessEnd();
  ProcessEnd(const ProcessEnd&) = delete;
  ProcessEnd& operator=(const ProcessEnd&) = delete;

  void on_ready(std::uint32_t events) override;

 private:
  ProcessEnd(std::shared_ptr<Engine> engine, UniqueFd process, std::function<void()> action);
  void stop();

  std::shared_ptr<Engine> engine_;
  UniqueFd process_;
  std::function<void()> action_;
};

}  // namespace hmc
