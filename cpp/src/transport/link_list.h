// LinkList: the working halves of a transport's endpoints, which it polls and keeps alive while callbacks that they make destroy
// the endpoints.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace hmc {

// Link: closed() says that its endpoint is gone, busy() that poll() is to turn it. Engine lock held throughout.
template <class Link>
class LinkList {
 public:
  void add(std::shared_ptr<Link> link) {
    if (!polling_) drop_closed();
    links_.push_back(std::move(link));
  }

  // Calls turn(link) for each that is busy; true if one of them moved something. Links may be closed and added meanwhile.
  template <class Turn>
  bool poll(Turn turn) {
    bool moved = false;
    bool closed_seen = false;
    polling_ = true;
    for (std::size_t i = 0; i < links_.size(); ++i) {
      closed_seen = closed_seen || links_[i]->closed();
      if (links_[i]->closed() || !links_[i]->busy()) continue;
      moved = turn(*links_[i]) || moved;  // none is dropped before the end
    }
    polling_ = false;
    if (closed_seen) drop_closed();
    return moved;
  }

  [[nodiscard]] bool idle() const {
    return std::ranges::none_of(links_, [](const auto& link) { return link->busy(); });
  }

  // For links that are polled without work of their own.
  [[nodiscard]] bool any_unsent() const {
    return std::ranges::any_of(links_, [](const auto& link) { return link->has_unsent(); });
  }

  // For links that wait for events each by themselves.
  [[nodiscard]] bool arm() const {
    return std::ranges::all_of(links_, [](const auto& link) { return link->closed() || link->arm(); });
  }

 private:
  void drop_closed() {
    std::erase_if(links_, [](const auto& link) { return link->closed(); });
  }

  std::vector<std::shared_ptr<Link>> links_;
  bool polling_ = false;
};

}  // namespace hmc
