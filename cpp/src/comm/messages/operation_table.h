// Operations by the number that the peer knows them by.
#pragma once

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/random.h"
#include "comm/messages/operations.h"

namespace hmc::messaging {

// Announced or matched operations. Engine lock held.
class OperationTable {
 public:
  // Not to be guessed: what a peer makes up must not end what another, or a part of the same, is doing.
  void number(Operation& operation) const {
    if (operation.id != 0) return;
    do operation.id = random_u64();
    while (operation.id == 0 || operations_.contains(operation.id));
  }
  void add(Operation& operation) {
    operations_.emplace(operation.id, std::static_pointer_cast<Operation>(operation.shared_from_this()));
  }
  [[nodiscard]] bool remove(const Operation& operation) { return operation.id != 0 && operations_.erase(operation.id) != 0; }

  // Null: `peer` has none of that number.
  [[nodiscard]] std::shared_ptr<Operation> find(std::uint64_t id, const PeerState& peer) const {
    const auto found = operations_.find(id);
    return found != operations_.end() && found->second->peer.get() == &peer ? found->second : nullptr;
  }
  // `peer` null: of all.
  [[nodiscard]] std::vector<std::shared_ptr<Operation>> of(const PeerState* peer) const {
    std::vector<std::shared_ptr<Operation>> found;
    for (const auto& [id, operation] : operations_) {
      if (peer == nullptr || operation->peer.get() == peer) found.push_back(operation);
    }
    return found;
  }
  template <class Condition>
  [[nodiscard]] bool any(Condition condition) const {
    return std::ranges::any_of(operations_, [&](const auto& item) { return condition(*item.second); });
  }

 private:
  std::unordered_map<std::uint64_t, std::shared_ptr<Operation>> operations_;
};

}  // namespace hmc::messaging
