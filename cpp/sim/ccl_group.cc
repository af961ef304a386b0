#include "ccl_group.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "core.h"

namespace hmc::sim {
namespace {

constexpr char magic[8] = "HMCCCL1";

struct WireId {
  char magic[8];
  char tag[8];
  std::uint32_t pid;
  std::uint32_t fd;
  std::uint64_t nonce;
};
static_assert(sizeof(WireId) <= sizeof(GroupId));

// Descriptors of groups that this process has made and that are not complete.
struct Made {
  std::mutex mutex;
  std::map<std::uint64_t, int> descriptors;  // by nonce
};
Made& made() {
  static Made& instance = *new Made;
  return instance;
}

std::string name_of(std::uint64_t nonce) {
  char name[64];
  std::snprintf(name, sizeof name, "hmcsim-ccl-%s-%llx.", profile.tag, static_cast<unsigned long long>(nonce));
  return name;
}

// A look, then the core for others, then sleep: ranks may outnumber cores.
class Pause {
 public:
  void operator()() {
    if (++looks_ < 50) {
      sched_yield();
    } else {
      usleep(50);
    }
  }

 private:
  int looks_ = 0;
};

}  // namespace

struct CclGroup::Shared {
  struct alignas(64) Seat {
    std::atomic<std::uint32_t> taken;  // PCI bus of the rank's device, plus one
    std::atomic<std::uint64_t> meetings;
  };
  std::array<Seat, most_ranks> seats;
  static constexpr std::size_t head_bytes = 4096;
  static constexpr std::size_t bytes = head_bytes + most_ranks * chunk_bytes;
};

bool CclGroup::make_id(GroupId& id) {
  static_assert(sizeof(Shared) <= Shared::head_bytes);
  WireId wire{};
  if (getrandom(&wire.nonce, sizeof wire.nonce, 0) != sizeof wire.nonce) return false;
  const int fd = memfd_create(name_of(wire.nonce).c_str(), MFD_CLOEXEC);
  if (fd < 0) return false;
  if (ftruncate(fd, Shared::bytes) != 0) {
    close(fd);
    return false;
  }
  std::memcpy(wire.magic, magic, sizeof magic);
  std::strncpy(wire.tag, profile.tag, sizeof wire.tag - 1);
  wire.pid = static_cast<std::uint32_t>(getpid());
  wire.fd = static_cast<std::uint32_t>(fd);
  id.fill(0);
  std::memcpy(id.data(), &wire, sizeof wire);
  const std::lock_guard lock(made().mutex);
  made().descriptors.emplace(wire.nonce, fd);
  return true;
}

CclGroup::Joined CclGroup::join(const GroupId& id, std::uint32_t rank, std::uint32_t ranks, unsigned pci_bus,
                                std::unique_ptr<CclGroup>& group) {
  WireId wire{};
  std::memcpy(&wire, id.data(), sizeof wire);
  if (std::memcmp(wire.magic, magic, sizeof magic) != 0 || std::strncmp(wire.tag, profile.tag, sizeof wire.tag) != 0)
    return Joined::invalid;
  if (ranks == 0 || ranks > most_ranks || rank >= ranks) return Joined::invalid;
  char entry[64], target[128];
  std::snprintf(entry, sizeof entry, "/proc/%u/fd/%u", wire.pid, wire.fd);
  // The name first, since opening some other kind of file might block.
  const ssize_t length = readlink(entry, target, sizeof target);
  if (length <= 0 || std::string_view(target, static_cast<std::size_t>(length)).find(name_of(wire.nonce)) == std::string_view::npos)
    return Joined::invalid;
  const int fd = open(entry, O_RDWR | O_CLOEXEC);
  if (fd < 0) return Joined::invalid;
  void* const memory = mmap(nullptr, Shared::bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return Joined::invalid;
  auto* const shared = static_cast<Shared*>(memory);  // zero at first
  group.reset(new CclGroup(shared, rank, ranks));
  shared->seats[rank].taken.store(pci_bus + 1);
  Pause pause;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    while (shared->seats[r].taken.load() == 0) pause();
  }
  {
    const std::lock_guard lock(made().mutex);
    if (const auto own = made().descriptors.find(wire.nonce); own != made().descriptors.end()) {
      close(own->second);
      made().descriptors.erase(own);
    }
  }
  for (std::uint32_t r = 0; r < ranks; ++r) {
    if (r != rank && shared->seats[r].taken.load() == pci_bus + 1) return Joined::duplicate_device;
  }
  return Joined::yes;
}

CclGroup::~CclGroup() { munmap(shared_, Shared::bytes); }

std::byte* CclGroup::given(std::uint32_t rank) const {
  return reinterpret_cast<std::byte*>(shared_) + Shared::head_bytes + rank * chunk_bytes;
}

bool CclGroup::meet(const std::atomic<bool>& ended) {
  shared_->seats[rank_].meetings.store(++meetings_);
  Pause pause;
  for (std::uint32_t r = 0; r < ranks_; ++r) {
    while (shared_->seats[r].meetings.load() < meetings_) {
      if (ended.load()) return false;
      pause();
    }
  }
  return !ended.load();
}

}  // namespace hmc::sim
