#include "progress/timers.h"

namespace hmc {

Timers::Id Timers::add(TimePoint when, std::function<void()> callback) {
  const Id id = ++last_;
  queue_.emplace(std::pair(when, id), std::move(callback));
  when_.emplace(id, when);
  return id;
}

void Timers::cancel(Id id) {
  const auto found = when_.find(id);
  if (found == when_.end()) return;
  // Out of the tables first: the callback's captures may cancel timers as they end.
  auto node = queue_.extract({found->second, id});
  when_.erase(found);
}

bool Timers::run(TimePoint now) {
  const Id newest = last_;
  bool any = false;
  auto it = queue_.begin();
  while (it != queue_.end() && it->first.first <= now) {
    if (it->first.second > newest) {
      ++it;
      continue;
    }
    auto node = queue_.extract(it);
    when_.erase(node.key().second);
    any = true;
    node.mapped()();
    it = queue_.begin();  // the callback may have changed anything
  }
  return any;
}

}  // namespace hmc
