// Counters: named counts of one Context. Owned by ContextImpl. Engine lock held.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace hmc {

class Counters {
 public:
  void add(std::string_view counter, std::uint64_t n) {
    if (const auto found = values_.find(counter); found != values_.end()) {
      found->second += n;
    } else {
      values_.emplace(counter, n);
    }
  }
  [[nodiscard]] const std::map<std::string, std::uint64_t, std::less<>>& values() const noexcept { return values_; }

 private:
  std::map<std::string, std::uint64_t, std::less<>> values_;
};

}  // namespace hmc
