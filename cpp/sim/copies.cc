#include "copies.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "memory.h"

namespace hmc::sim {
namespace {

// One end of a copy: a place in an allocation, or an address of the host. A range of virtual memory may go on in further pieces.
struct End {
  AllocationRef allocation;
  std::vector<AllocationRef> further;
  std::size_t offset = 0;
  std::uintptr_t host = 0;
  [[nodiscard]] std::byte* alias() const { return allocation->alias + offset; }
};

// Adds the pieces that [offset, offset + bytes) reaches beyond the first.
bool take_further(End& end, std::size_t bytes) {
  const Allocation* last = end.allocation.get();
  if (!last->accessible.load()) return false;
  for (std::size_t covered = last->bytes; covered < end.offset + bytes; covered += last->bytes) {
    if (last->reservation == nullptr) return false;
    AllocationRef next = find_allocation(reinterpret_cast<const void*>(last->address + last->bytes));
    if (!next || next->reservation != last->reservation || !next->accessible.load()) return false;
    last = next.get();
    end.further.push_back(std::move(next));
  }
  return true;
}

Error resolve(const void* pointer, std::size_t bytes, Side side, End& end) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  end.allocation = find_allocation(pointer);
  if (end.allocation) {
    end.offset = address - end.allocation->address;
    const bool inside = end.offset <= end.allocation->bytes && bytes <= PTRDIFF_MAX;
    return inside && take_further(end, bytes) && side != Side::host ? Error::ok : Error::invalid_value;
  }
  if (pointer == nullptr) return Error::invalid_value;
  if (side == Side::device) {
    const PointerView view = look_up(pointer);
    if (view.kind != PointerView::Kind::pinned || bytes > view.bytes - (address - view.base)) return Error::invalid_value;
  }
  end.host = address;
  return Error::ok;
}

// Between the host and a memfd: the kernel touches the host's side, and says so when it cannot.
Error host_to_file(std::uintptr_t host, int fd, std::size_t offset, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t done = pwrite(fd, reinterpret_cast<const void*>(host), bytes, static_cast<off_t>(offset));
    if (done <= 0) return Error::illegal_address;
    const auto moved = static_cast<std::size_t>(done);
    host += moved, offset += moved, bytes -= moved;
  }
  return Error::ok;
}

Error file_to_host(int fd, std::size_t offset, std::uintptr_t host, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t done = pread(fd, reinterpret_cast<void*>(host), bytes, static_cast<off_t>(offset));
    if (done <= 0) return Error::illegal_address;
    const auto moved = static_cast<std::size_t>(done);
    host += moved, offset += moved, bytes -= moved;
  }
  return Error::ok;
}

// By way of a scratch file, for the sake of the errors.
Error host_to_host(std::uintptr_t target, std::uintptr_t source, std::size_t bytes) {
  const int fd = memfd_create("hmcsim-scratch", MFD_CLOEXEC);
  if (fd < 0) return Error::out_of_memory;
  Error error = host_to_file(source, fd, 0, bytes);
  if (error == Error::ok) error = file_to_host(fd, 0, target, bytes);
  close(fd);
  return error;
}

// Calls function(fd, offset in it, bytes done before, bytes) for each piece of the end's first `bytes`.
template <class Function>
Error each_piece(const End& end, std::size_t bytes, const Function& function) {
  const Allocation* piece = end.allocation.get();
  std::size_t offset = end.offset;
  auto next = end.further.begin();
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t n = std::min(bytes - done, piece->bytes - offset);
    if (const Error error = function(piece->fd, offset, done, n); error != Error::ok) return error;
    done += n;
    offset = 0;
    if (done < bytes) piece = (next++)->get();
  }
  return Error::ok;
}

Error move(const End& target, const End& source, std::size_t bytes) {
  if (target.allocation && source.allocation) {
    std::memmove(target.alias(), source.alias(), bytes);
    return Error::ok;
  }
  if (target.allocation) {
    return each_piece(target, bytes, [&](int fd, std::size_t offset, std::size_t done, std::size_t n) {
      return host_to_file(source.host + done, fd, offset, n);
    });
  }
  if (source.allocation) {
    return each_piece(source, bytes, [&](int fd, std::size_t offset, std::size_t done, std::size_t n) {
      return file_to_host(fd, offset, target.host + done, n);
    });
  }
  return host_to_host(target.host, source.host, bytes);
}

// Checks the ends of a copy and makes the operation; empty when there is nothing to copy.
Error prepare_copy(void* target, const void* source, std::size_t bytes, Side target_side, Side source_side,
                   std::function<Error()>& work) {
  if (bytes == 0) return Error::ok;
  End to;
  End from;
  if (const Error error = resolve(target, bytes, target_side, to); error != Error::ok) return error;
  if (const Error error = resolve(source, bytes, source_side, from); error != Error::ok) return error;
  work = [to = std::move(to), from = std::move(from), bytes] { return move(to, from, bytes); };
  return Error::ok;
}

Error prepare_fill(void* target, int value, std::size_t bytes, std::function<Error()>& work) {
  if (bytes == 0) return Error::ok;
  End to;
  if (const Error error = resolve(target, bytes, Side::device, to); error != Error::ok) return error;
  work = [to = std::move(to), value, bytes] {
    std::memset(to.allocation ? to.alias() : reinterpret_cast<std::byte*>(to.host), value, bytes);
    return Error::ok;
  };
  return Error::ok;
}

Error run_or_submit(Error prepared, std::function<Error()> work, const StreamRef& stream, bool blocking) {
  if (!stream) return Error::invalid_handle;
  if (prepared != Error::ok || !work) return prepared;
  if (!blocking) {
    static_cast<void>(submit(stream, std::move(work)));
    return Error::ok;
  }
  return run_blocking(stream, [work = std::move(work)] {
    const Error error = work();
    return error == Error::illegal_address ? Error::invalid_value : error;
  });
}

// Where the host may access 4 or 8 bytes atomically: the alias of device memory, or pinned memory itself.
Error resolve_word(const void* pointer, std::size_t width, End& end, std::byte** word) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % width != 0) return Error::invalid_value;
  if (const Error error = resolve(pointer, width, Side::device, end); error != Error::ok) return error;
  *word = end.allocation ? end.alias() : reinterpret_cast<std::byte*>(end.host);
  return Error::ok;
}

template <class Word>
bool holds(Word found, Word wanted, Compare compare) {
  switch (compare) {
    case Compare::greater_or_equal:
      return static_cast<std::make_signed_t<Word>>(found - wanted) >= 0;
    case Compare::equal:
      return found == wanted;
    case Compare::any_bit:
      return (found & wanted) != 0;
    case Compare::not_all_bits:
      return static_cast<Word>(~(found | wanted)) != 0;
  }
  return true;
}

template <class Word>
void wait_for(std::byte* word, std::uint64_t value, Compare compare) {
  const std::atomic_ref<Word> watched(*reinterpret_cast<Word*>(word));
  while (!holds(watched.load(std::memory_order_acquire), static_cast<Word>(value), compare)) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

template <class Word>
void store(std::byte* word, std::uint64_t value) {
  std::atomic_ref<Word>(*reinterpret_cast<Word*>(word)).store(static_cast<Word>(value), std::memory_order_release);
}

}  // namespace

Error copy(void* target, const void* source, std::size_t bytes, Side target_side, Side source_side, const StreamRef& stream) {
  std::function<Error()> work;
  const Error prepared = prepare_copy(target, source, bytes, target_side, source_side, work);
  return run_or_submit(prepared, std::move(work), stream, false);
}

Error copy_blocking(void* target, const void* source, std::size_t bytes, Side target_side, Side source_side,
                    const StreamRef& stream) {
  std::function<Error()> work;
  const Error prepared = prepare_copy(target, source, bytes, target_side, source_side, work);
  return run_or_submit(prepared, std::move(work), stream, true);
}

Error copy_now(void* target, const void* source, std::size_t bytes, Side target_side, Side source_side) {
  std::function<Error()> work;
  const Error prepared = prepare_copy(target, source, bytes, target_side, source_side, work);
  return prepared != Error::ok || !work ? prepared : work();
}

Error reach(const void* pointer, std::size_t bytes, std::byte** reached, std::shared_ptr<void>& hold) {
  auto end = std::make_shared<End>();
  if (const Error error = resolve(pointer, bytes, Side::device, *end); error != Error::ok) return error;
  *reached = end->allocation ? end->alias() : reinterpret_cast<std::byte*>(end->host);
  hold = std::move(end);
  return Error::ok;
}

Error fill(void* target, int value, std::size_t bytes, const StreamRef& stream) {
  std::function<Error()> work;
  const Error prepared = prepare_fill(target, value, bytes, work);
  return run_or_submit(prepared, std::move(work), stream, false);
}

Error fill_blocking(void* target, int value, std::size_t bytes, const StreamRef& stream) {
  std::function<Error()> work;
  const Error prepared = prepare_fill(target, value, bytes, work);
  return run_or_submit(prepared, std::move(work), stream, true);
}

Error call_host(void (*function)(void*), void* argument, const StreamRef& stream) {
  if (!stream) return Error::invalid_handle;
  if (function == nullptr) return Error::invalid_value;
  submit(stream, [function, argument] {
    function(argument);
    return Error::ok;
  });
  return Error::ok;
}

Error write_value(void* target, std::uint64_t value, std::size_t width, const StreamRef& stream) {
  if (!stream) return Error::invalid_handle;
  End end;
  std::byte* word = nullptr;
  if (const Error error = resolve_word(target, width, end, &word); error != Error::ok) return error;
  submit(stream, [end = std::move(end), word, value, width] {
    width == 4 ? store<std::uint32_t>(word, value) : store<std::uint64_t>(word, value);
    return Error::ok;
  });
  return Error::ok;
}

Error wait_value(const void* source, std::uint64_t value, std::size_t width, Compare compare, const StreamRef& stream) {
  if (!stream) return Error::invalid_handle;
  End end;
  std::byte* word = nullptr;
  if (const Error error = resolve_word(source, width, end, &word); error != Error::ok) return error;
  submit(stream, [end = std::move(end), word, value, width, compare] {
    width == 4 ? wait_for<std::uint32_t>(word, value, compare) : wait_for<std::uint64_t>(word, value, compare);
    return Error::ok;
  });
  return Error::ok;
}

}  // namespace hmc::sim
