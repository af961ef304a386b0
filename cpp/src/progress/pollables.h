// Pollables: the list that an engine polls, arms and disarms. Engine lock held for every call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/pollable.h"

namespace hmc {

class Pollables {
 public:
  // While a Round lives, functions of Pollables (or deferred functions, predicates of waiters) run: remove() leaves a null entry,
  // which the outermost Round erases at its end.
  class Round {
   public:
    explicit Round(Pollables& list) noexcept : list_(list), nested_(std::exchange(list.in_round_, true)) {}
    Round(const Round&) = delete;
    Round& operator=(const Round&) = delete;
    ~Round() {
      if (nested_) return;
      list_.in_round_ = false;
      if (std::exchange(list_.holes_, false)) std::erase(list_.pollables_, nullptr);
    }

   private:
    Pollables& list_;
    const bool nested_;
  };

  [[nodiscard]] bool in_round() const noexcept { return in_round_; }
  [[nodiscard]] bool empty() const noexcept { return pollables_.empty(); }
  [[nodiscard]] bool armed() const noexcept { return armed_; }
  [[nodiscard]] bool any_busy() const {
    return std::ranges::any_of(pollables_, [](const Pollable* pollable) { return pollable != nullptr && pollable->busy(); });
  }

  // The added Pollable is not armed: if the list is, the caller disarms it.
  void add(Pollable& pollable) { pollables_.push_back(&pollable); }
  void remove(Pollable& pollable) {
    const auto found = std::find(pollables_.begin(), pollables_.end(), &pollable);
    if (found == pollables_.end()) return;
    if (in_round_) {
      *found = nullptr;
      holes_ = true;
    } else {
      pollables_.erase(found);
    }
  }

  // Called in a Round. True if anything moved. Also polls what is added meanwhile.
  bool poll() {
    bool any = false;
    for (std::size_t i = 0; i < pollables_.size(); ++i) {
      if (Pollable* pollable = pollables_[i]; pollable != nullptr && pollable->poll()) any = true;
    }
    return any;
  }

  // Arms all or none. False if one refused.
  bool arm() {
    const Round round(*this);
    for (std::size_t i = 0; i < pollables_.size(); ++i) {
      if (pollables_[i] != nullptr && !pollables_[i]->arm()) {
        disarm_first(i);
        return false;
      }
    }
    armed_ = true;
    return true;
  }

  void disarm() {
    const Round round(*this);
    armed_ = false;
    disarm_first(pollables_.size());
  }

 private:
  void disarm_first(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      if (pollables_[i] != nullptr) pollables_[i]->disarm();
    }
  }

  std::vector<Pollable*> pollables_;  // null: removed during a Round
  bool in_round_ = false;
  bool holes_ = false;  // pollables_ has null entries
  bool armed_ = false;
};

}  // namespace hmc
