#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <utility>

namespace hmc {

std::unique_ptr<std::thread> start_thread(const char* name, std::function<void()> body) {
  sigset_t blocked;
  sigset_t before;
  sigfillset(&blocked);
  for (const int fault : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);  // the new thread inherits it
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
