#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <utility>

namespace hmc {

std::unique_ptr<std::thread> start_thread(const char* name, std::function<void()> body) {
  sigset_t every;
  sigset_t before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);  // the new thread inherits it
  std::unique_ptr<std::thread> thread;
  try {
    thread = std::make_unique<std::thread>(std::move(body));
    pthread_setname_np(thread->native_handle(), name);
  } catch (const std::exception&) {  // no thread, or no memory for one
    thread.reset();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace hmc
