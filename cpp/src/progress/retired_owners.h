// RetiredOwners: owners whose end must not run under the engine lock. Engine lock held for every call.
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace hmc {

class RetiredOwners {
 public:
  using Owners = std::vector<std::shared_ptr<const void>>;

  [[nodiscard]] bool empty() const noexcept { return owners_.empty(); }
  void add(std::shared_ptr<const void> owner) { owners_.push_back(std::move(owner)); }
  // The caller releases them once the lock is not held.
  [[nodiscard]] Owners take() noexcept { return std::exchange(owners_, {}); }

 private:
  Owners owners_;
};

}  // namespace hmc
