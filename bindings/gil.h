// The GIL while the interpreter may end. From Python 3.10 to 3.13 a thread that takes the GIL of an ended interpreter is ended by
// pthread_exit, whose unwinding runs destructors without the GIL and calls std::terminate in a noexcept function. Threads of HMC's
// callers stop for ever instead, as from Python 3.14 on; the dispatcher's threads no longer call Python.
#pragma once

#include <Python.h>

#include <exception>
#include <type_traits>
#include <utility>

namespace hmc::bindings {

// Never returns: the process ends with this thread in it. For a thread that the interpreter has ended.
[[noreturn]] void stop_thread() noexcept;

// Its end stops the thread, unless `returned` is set or a C++ exception passes. Not by a handler for abi::__forced_unwind: within
// the handler of an exception, where errors are made, that calls std::terminate.
struct StopUnlessReturned {
  StopUnlessReturned() noexcept : exceptions(std::uncaught_exceptions()) {}
  ~StopUnlessReturned() {
    if (!returned && std::uncaught_exceptions() == exceptions) stop_thread();
  }
  StopUnlessReturned(const StopUnlessReturned&) = delete;
  StopUnlessReturned& operator=(const StopUnlessReturned&) = delete;

  const int exceptions;
  bool returned = false;
};

// Runs `call`, which enters the interpreter and has nothing to destroy. A thread that the interpreter ends in it stops there,
// before any destructor of the C++ frames above runs without the GIL.
template <class Call>
auto in_interpreter(Call call) {
  StopUnlessReturned end;
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    end.returned = true;
  } else {
    const auto result = call();
    end.returned = true;
    return result;
  }
}

// Whether the interpreter is ending, and this thread is not the one that ends it.
bool ended_for_this_thread() noexcept;
// Whether Python runs signal handlers on this thread. No GIL needed.
bool handles_signals() noexcept;
// Whether this thread has the GIL: none has it once the interpreter has ended.
bool holds_gil() noexcept;
// Whether this process was forked off one that had imported the module.
bool in_forked_child() noexcept;
// PyEval_RestoreThread.
void restore_thread(PyThreadState* state) noexcept;

// Gives up the GIL while it lives. Made with the GIL.
class ReleasedGil {
 public:
  ReleasedGil() noexcept : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() { restore_thread(state_); }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* const state_;
};

// Use of the interpreter by a thread that Python did not start, such as the dispatcher's. False once the interpreter is about to
// end: its atexit hook waits until every such use is over.
class ForeignUse {
 public:
  ForeignUse() noexcept;
  ~ForeignUse();
  ForeignUse(const ForeignUse&) = delete;
  ForeignUse& operator=(const ForeignUse&) = delete;
  explicit operator bool() const noexcept { return permitted_; }

 private:
  const bool permitted_;
};

// Calls callable(args...) on a thread that Python did not start; what it raises is reported as unraisable. `arguments` makes the
// tuple of arguments (a new reference, or null with an exception set) under the GIL; it may run zero times.
template <class Arguments>
void call_from_foreign_thread(PyObject* callable, const char* where, Arguments arguments);

// Installs the atexit hook. GIL held, while the module is made.
void guard_interpreter();

// The deleter of objects whose end may take long or wait for threads that take the GIL.
template <class T>
struct WithoutGil {
  void operator()(T* object) const noexcept {
    if (!holds_gil()) {
      delete object;
      return;
    }
    const ReleasedGil nogil;
    delete object;
  }
};

// The same for memory: giving its pages back takes long for large ones only. A small slice may hold large memory.
template <class T>
struct FreeLargeWithoutGil {
  static constexpr std::size_t large = 64 << 10;
  void operator()(T* object) const noexcept {
    if (object->size() >= large || object->offset() > 0) {
      WithoutGil<T>()(object);
    } else {
      delete object;
    }
  }
};

// ---- of call_from_foreign_thread ----
namespace detail {
// Raw references only: should the interpreter end the thread in here after all, no destructor touches Python.
void call_foreign(PyObject* callable, const char* where, PyObject* (*arguments)(void*), void* state);
}  // namespace detail

template <class Arguments>
void call_from_foreign_thread(PyObject* callable, const char* where, Arguments arguments) {
  const ForeignUse use;
  if (!use) return;
  detail::call_foreign(callable, where, [](void* state) { return (*static_cast<Arguments*>(state))(); }, &arguments);
}

}  // namespace hmc::bindings
