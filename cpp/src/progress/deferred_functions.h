// DeferredFunctions: what an engine runs at the end of a round. Engine lock held for every call.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace hmc {

class DeferredFunctions {
 public:
  [[nodiscard]] bool empty() const noexcept { return functions_.empty(); }
  void add(std::function<void()> function) { functions_.push_back(std::move(function)); }
  // Runs and releases each function, in order. What they defer in turn waits for the next call.
  void run() {
    auto batch = std::exchange(functions_, {});
    for (auto& function : batch) {
      function();
      function = nullptr;
    }
  }

 private:
  std::vector<std::function<void()>> functions_;
};

}  // namespace hmc
