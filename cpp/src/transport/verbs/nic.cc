#include "transport/verbs/nic.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/env.h"
#include "base/log.h"
#include "base/wire.h"
#include "device/pci.h"

namespace hmc::verbs {
namespace {

// One line of a file of sysfs; empty when there is none.
std::string sysfs(const std::string& device, std::uint8_t port, const std::string& file) {
  std::ifstream in("/sys/class/infiniband/" + device + "/ports/" + std::to_string(port) + "/" + file);
  std::string line;
  std::getline(in, line);
  return line;
}

// "100 Gb/sec (4X EDR)", in bytes per second. The verbs call has no numbers for the newest speeds.
std::uint64_t rate_of(const std::string& device, std::uint8_t port) {
  const std::string text = sysfs(device, port, "rate");
  const double gigabits = std::strtod(text.c_str(), nullptr);
  return gigabits > 0 && gigabits < 1e6 ? static_cast<std::uint64_t>(gigabits * 1e9 / 8) : 0;
}

// HMC_NICS: "mlx5_0,mlx5_1" only these, "^mlx5_2" all but, empty all.
bool allowed(std::string_view list, std::string_view name) {
  const bool exclude = list.starts_with('^');
  if (exclude) list.remove_prefix(1);
  if (list.empty()) return true;
  for (;;) {
    const auto comma = list.find(',');
    if (list.substr(0, comma) == name) return !exclude;
    if (comma == std::string_view::npos) return exclude;
    list.remove_prefix(comma + 1);
  }
}

void set_nonblocking(int fd) noexcept {
  if (const int flags = fcntl(fd, F_GETFL); flags >= 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

}  // namespace

std::vector<std::unique_ptr<Nic>> Nic::open_all(const Api& api, const std::shared_ptr<Engine>& engine, std::string& problems) {
  std::vector<std::unique_ptr<Nic>> nics;
  const auto note = [&](const std::string& text) { problems += (problems.empty() ? "" : "; ") + text; };
  const std::string wanted = env_text("HMC_NICS").value_or("");
  int count = 0;
  ibv_device** devices = api.get_device_list(&count);
  if (devices == nullptr && errno != ENOSYS) {
    note(errno_status("listing the RDMA devices", errno).str());
    return nics;
  }
  if (devices == nullptr || count == 0) {  // ENOSYS: the kernel's part is not loaded
    note("no RDMA device");
    count = 0;
  }
  for (int i = 0; i < count; ++i) {
    const std::string name = api.get_device_name(devices[i]);
    if (!allowed(wanted, name)) {
      note(name + ": left out by HMC_NICS=" + wanted);
      continue;
    }
    // Until the device itself says how many ports it has, there is one.
    for (unsigned port = 1, ports = 1; port <= ports && nics.size() < max_nics; ++port) {
      auto nic = std::unique_ptr<Nic>(new Nic(api, engine, name));
      const Status opened = nic->open(devices[i], static_cast<std::uint8_t>(port), static_cast<std::uint8_t>(nics.size()));
      if (nic->context_ != nullptr) {
        ibv_device_attr attributes{};
        if (api.query_device(nic->context_, &attributes) == 0) ports = attributes.phys_port_cnt;
      }
      if (opened.ok()) {
        nics.push_back(std::move(nic));
      } else {
        note(name + " port " + std::to_string(port) + ": " + std::string(opened.message()));
      }
    }
  }
  if (devices != nullptr) api.free_device_list(devices);
  return nics;
}

Status Nic::open(ibv_device* device, std::uint8_t port, std::uint8_t index) {
  // iWARP connects in other ways, and some clouds' devices have no reliable connections.
  if (device->transport_type != IBV_TRANSPORT_IB) return Status(Code::unsupported, "it speaks neither InfiniBand nor RoCE");
  context_ = api_.open_device(device);
  if (context_ == nullptr) return errno_status("opening it (see the permissions of /dev/infiniband)", errno);
  ibv_device_attr device_attributes{};
  if (const int error = api_.query_device(context_, &device_attributes); error != 0)
    return errno_status("asking for its limits", error);
  ibv_port_attr attributes{};
  if (const int error = api_.query_port(context_, port, attributes); error != 0) return errno_status("asking for the port", error);
  if (attributes.state != IBV_PORT_ACTIVE) return Status(Code::unsupported, "the port is not active");
  port_ = port;
  max_message_ = attributes.max_msg_sz;
  max_reads_ = static_cast<std::uint8_t>(std::clamp(device_attributes.max_qp_init_rd_atom, 1, 16));
  info_.nic = index;
  info_.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  info_.lid = attributes.lid;
  info_.mtu = static_cast<std::uint8_t>(attributes.active_mtu);
  info_.read_atom = static_cast<std::uint8_t>(std::clamp(device_attributes.max_qp_rd_atom, 1, 16));
  info_.rate = rate_of(name_, port);
  std::error_code ignored;
  const auto place = std::filesystem::canonical("/sys/class/infiniband/" + name_ + "/device", ignored);
  if (!ignored) numa_node_ = pci_facts(place.filename().string()).numa_node;
  HMC_TRY(choose_gid(attributes.gid_tbl_len));
  domain_ = api_.alloc_pd(context_);
  if (domain_ == nullptr) return errno_status("making a protection domain", errno);
  ask_for_devices();
  HMC_TRY(queues_.open(context_, device_attributes.max_cqe));
  for (const int fd : {context_->cmd_fd, context_->async_fd, queues_.descriptor()}) inherited_.emplace_back(fd);
  set_nonblocking(queues_.descriptor());
  set_nonblocking(context_->async_fd);
  return {};
}

bool Nic::active() const noexcept {
  ibv_port_attr attributes{};
  return api_.query_port(context_, port_, attributes) == 0 && attributes.state == IBV_PORT_ACTIVE;
}

// RoCE: version 2 (it is routed), an IPv4 address before an IPv6 one, a link-local one last. InfiniBand: the first.
Status Nic::choose_gid(int table_length) {
  int best_rank = 0;
  for (int i = 0; i < std::min(table_length, 256); ++i) {
    ibv_gid raw{};
    if (api_.query_gid(context_, port_, i, &raw) != 0) continue;
    Gid gid{};
    std::copy_n(raw.raw, gid_bytes, gid.begin());
    if (std::ranges::all_of(gid, [](std::uint8_t b) { return b == 0; })) continue;
    int rank = 1;
    if (info_.ethernet) {
      if (sysfs(name_, port_, "gid_attrs/types/" + std::to_string(i)) != "RoCE v2") continue;
      rank = is_ipv4(gid) ? 3 : gid[0] == 0xFE && (gid[1] & 0xC0) == 0x80 ? 1 : 2;
    }
    if (rank <= best_rank) continue;
    best_rank = rank;
    info_.gid = gid;
    gid_index_ = static_cast<std::uint8_t>(i);
  }
  if (best_rank == 0) return Status(Code::unsupported, "the port has no GID of RoCE v2; give its network interface an address");
  return {};
}

// Which ways to memory of devices there seem to be; whether one works is tried with each device (DeviceMemory).
void Nic::ask_for_devices() {
  if (api_.reg_dmabuf_mr != nullptr) {
    // No descriptor: who can do it complains about that, who cannot says so before.
    constexpr std::size_t page = 4096;
    ibv_mr* made = api_.reg_dmabuf_mr(domain_, 0, page, 0, -1, IBV_ACCESS_LOCAL_WRITE);
    dma_buf_ = made != nullptr || errno == EBADF;
    if (made != nullptr) api_.dereg_mr(made);
  }
  // Where modules that lend device memory to the RDMA core announce themselves. Some kernels let them do it in other ways.
  std::error_code ignored;
  const std::filesystem::directory_iterator modules("/sys/kernel/mm/memory_peers", ignored);
  const bool announced = !ignored && modules != std::filesystem::directory_iterator();
  peer_memory_ = env_integer("HMC_VERBS_PEER_MEMORY", announced ? 1 : 0, 0, 1) != 0;
  info_.devices = dma_buf_ || peer_memory_;
}

Nic::~Nic() {
  for (UniqueFd& fd : inherited_) static_cast<void>(fd.release());  // the library closes them
  if (forked()) return;
  queues_.close();
  if (domain_ != nullptr) api_.dealloc_pd(domain_);
  if (context_ != nullptr) api_.close_device(context_);
}

Result<ibv_mr*> Nic::register_memory(void* data, std::size_t bytes, unsigned access) const {
  ibv_mr* region = api_.reg_mr(domain_, data, bytes, static_cast<int>(access));
  if (region != nullptr) return region;
  const int error = errno;
  const std::string what = name_ + ": registering " + std::to_string(bytes) + " bytes";
  rlimit limit{};
  if (error == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return Status(Code::out_of_memory,
                  what + ": more than this process may lock (RLIMIT_MEMLOCK is " + std::to_string(limit.rlim_cur >> 10) +
                      " KiB); raise it with `ulimit -l unlimited`, /etc/security/limits.conf, LimitMEMLOCK=infinity of a systemd "
                      "service, or --ulimit memlock=-1 of a container",
                  error);
  }
  if (error == ENOMEM) {
    return Status(Code::out_of_memory,
                  what +
                      ": no memory, or no room for another region on the card; close buffers that are not used, or leave cards out "
                      "(HMC_NICS)",
                  error);
  }
  return errno_status(what, error);
}

Result<ibv_mr*> Nic::register_dma_buf(const Blob& exported, void* data, std::size_t bytes, unsigned access) const {
  WireReader reader(exported.bytes);
  const std::uint64_t offset = reader.u64();
  if (!reader.ok() || exported.fds.size() != 1) return Status(Code::device, "the vendor's dma-buf is not described as one");
  ibv_mr* region = api_.reg_dmabuf_mr(domain_, offset, bytes, reinterpret_cast<std::uintptr_t>(data), exported.fds[0].get(),
                                      static_cast<int>(access));
  if (region != nullptr) return region;
  return errno_status(name_ + ": registering a dma-buf of " + std::to_string(bytes) + " bytes", errno);
}

}  // namespace hmc::verbs
