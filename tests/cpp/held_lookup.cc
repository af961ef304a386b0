#include "held_lookup.h"

#include <dlfcn.h>
#include <netdb.h>

#include <condition_variable>
#include <mutex>
#include <string_view>

namespace {

std::mutex mutex;
std::condition_variable changed;
bool held = false, several = false;
int inside = 0;

}  // namespace

extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (numeric || node == nullptr || std::string_view(node) != hmc::testing::HeldLookup::name) {
    return original(node, service, hints, found);
  }
  std::unique_lock lock(mutex);
  ++inside;
  changed.notify_all();
  changed.wait(lock, [] { return !held; });
  const int result = original("127.0.0.1", service, hints, found);
  addrinfo* first = nullptr;
  if (result == 0 && several && original("127.0.0.2", service, hints, &first) == 0) {
    first->ai_next = *found;
    *found = first;
  }
  --inside;
  changed.notify_all();
  return result;
}

namespace hmc::testing {

HeldLookup::HeldLookup(bool finds_several) {
  const std::scoped_lock lock(mutex);
  held = true;
  several = finds_several;
}

HeldLookup::~HeldLookup() {
  release();
  std::unique_lock lock(mutex);
  changed.wait(lock, [] { return inside == 0; });
}

void HeldLookup::release() {
  const std::scoped_lock lock(mutex);
  held = false;
  changed.notify_all();
}

void HeldLookup::wait_for_lookup() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [] { return inside > 0; });
}

}  // namespace hmc::testing
