// Recycled: an allocator for small objects that come and go many times a second, such as messages under way.
//
// Each thread keeps up to 64 freed blocks for its next ones. libc keeps seven of a size and then takes its slower way: of a message
// of 8 bytes to 1 KiB that is 2 to 5 % of the time.
#pragma once

#include <cstddef>
#include <new>

namespace hmc {

// The freed blocks of one thread. Any thread may free what another one allocated.
template <std::size_t bytes, std::size_t alignment>
class FreeBlocks {
 public:
  static void* take() {
    List& list = mine();
    if (list.first == nullptr) return ::operator new(bytes, std::align_val_t{alignment});
    Block* const block = list.first;
    list.first = block->next;
    --list.count;
    return block;
  }
  static void give(void* memory) noexcept {
    List& list = mine();
    if (list.count >= most || list.ended) return ::operator delete(memory, std::align_val_t{alignment});
    list.first = ::new (memory) Block{list.first};
    ++list.count;
  }

 private:
  struct Block {
    Block* next;
  };
  static_assert(bytes >= sizeof(Block) && alignment >= alignof(Block));
  static constexpr unsigned most = 64;
  // Never destroyed: objects may end after the thread's other variables.
  struct List {
    Block* first;
    unsigned count;
    bool ended;
  };
  struct Reaper {
    ~Reaper() {
      List& list = mine();
      list.ended = true;
      while (list.first != nullptr) {
        Block* const block = list.first;
        list.first = block->next;
        ::operator delete(block, std::align_val_t{alignment});
      }
      list.count = 0;
    }
  };
  static List& mine() noexcept {
    static constinit thread_local List list{};
    static thread_local const Reaper reaper;
    return list;
  }
};

template <class T>
struct Recycled {
  using value_type = T;
  Recycled() noexcept = default;
  template <class U>
  Recycled(const Recycled<U>&) noexcept {}  // NOLINT(google-explicit-constructor): as allocators are converted
  [[nodiscard]] T* allocate(std::size_t count) {
    if (count != 1) throw std::bad_array_new_length();
    return static_cast<T*>(FreeBlocks<sizeof(T), alignof(T)>::take());
  }
  void deallocate(T* memory, std::size_t) noexcept { FreeBlocks<sizeof(T), alignof(T)>::give(memory); }
  friend bool operator==(const Recycled&, const Recycled&) noexcept { return true; }
};

}  // namespace hmc
