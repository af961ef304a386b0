#include "transport/ucx/library_context.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <utility>

namespace hmc::ucx {
namespace {

using Names = std::vector<std::string>;

// Of UCX, for this ucp_context only. What the user has set in the environment stays.
struct Setting {
  const char* variable;
  const char* key;
  const char* value;
  bool (*matters)(const Names& transports);  // UCX complains of settings of what it does not use
  unsigned since = 0;                        // minor versions
  unsigned until = ~0U;
};
bool shared_memory(const Names& transports) {
  return std::ranges::any_of(transports, [](const auto& name) { return name == "sysv" || name == "posix"; });
}
bool network_cards(const Names& transports) { return std::ranges::any_of(transports, writes_memory); }
bool software_only(const Names& transports) { return !transports.empty() && !network_cards(transports); }
bool software_tcp(const Names& transports) {
  return software_only(transports) && std::ranges::find(transports, "tcp") != transports.end();
}
constexpr Setting settings[] = {
    // HMC registers what it moves itself: with no cache of registrations UCX need not patch munmap() and its like.
    {"UCX_RCACHE_ENABLE", "RCACHE_ENABLE", "n", nullptr},
    // Shared memory may be used together with peer-error handling.
    {"UCX_MM_ERROR_HANDLING", "MM_ERROR_HANDLING", "y", shared_memory},
    // What UCX sends without copying it first it may end twice when the connection breaks (1.13, over TCP).
    {"UCX_ZCOPY_THRESH", "ZCOPY_THRESH", "inf", software_only},
    // Each peer has a worker of its own, and UCX sizes one for thousands of peers: 78 MiB, of which these leave 22. No fewer
    // buffers than UCX's flow control lets the peer fill (UCX_RC_FC_WND_SIZE, 512).
    {"UCX_IB_RX_QUEUE_LEN", "IB_RX_QUEUE_LEN", "512", network_cards},
    {"UCX_IB_TX_BUFS_GROW", "IB_TX_BUFS_GROW", "128", network_cards},
    // UCX's seven retries are endless ones on Soft-RoCE: nobody would be told that a link is down, or that a read was cut off.
    {"UCX_RC_RETRY_COUNT", "RC_RETRY_COUNT", "6", network_cards},
    // Older versions have another cache of registrations for network cards: memory that was given back stayed in peers' reach.
    {"UCX_IB_REG_METHODS", "REG_METHODS", "direct", network_cards, 0, 15},
    // A piece of a put is one segment. Older versions do not know this name.
    {"UCX_TCP_TX_SEG_SIZE", "TCP_TX_SEG_SIZE", "32k", software_tcp, 18},
};
constexpr const Setting& tcp_segments = settings[std::size(settings) - 1];

bool applies(const Setting& setting, const Api& api, const Names& transports) {
  if (set_by_user(setting.variable) || api.minor < setting.since || api.minor > setting.until) return false;
  return setting.matters == nullptr || setting.matters(transports);
}

// UCX says which transports it uses only in what it prints: those that follow `mark` in its lines, each once.
Names printed_transports(std::string_view mark, const std::function<void(std::FILE*)>& print) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const file = open_memstream(&text, &size);
  if (file == nullptr) return {};
  print(file);
  std::fclose(file);
  Names found;
  std::istringstream lines(std::string(text, size));
  std::free(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(mark) == std::string::npos) continue;
    const auto slash = line.find('/');  // "-- tcp/eth0", "1:tcp/eth0.0 md[1] -> md[1]/tcp"
    if (slash == std::string::npos) continue;
    const auto start = line.find_last_of(" :", slash) + 1;
    const std::string name = line.substr(start, slash - start);
    if (std::ranges::find(found, name) == found.end()) found.push_back(name);
  }
  return found;
}

}  // namespace

// Reliable connections of InfiniBand and RoCE.
bool writes_memory(const std::string& transport) noexcept { return transport.starts_with("rc") || transport.starts_with("dc"); }

std::optional<MemoryKind> kind_of(const Device& device) noexcept {
  if (device.is_cpu()) return MemoryKind::host;
  if (device.vendor() == "cuda") return MemoryKind::cuda;
  if (device.vendor() == "rocm") return MemoryKind::rocm;
  return std::nullopt;
}

ucs_memory_type_t type_of(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::host:
      break;
    case MemoryKind::cuda:
      return UCS_MEMORY_TYPE_CUDA;
    case MemoryKind::rocm:
      return UCS_MEMORY_TYPE_ROCM;
  }
  return UCS_MEMORY_TYPE_HOST;
}

std::string_view sharing_transport(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::host:
      break;
    case MemoryKind::cuda:
      return "cuda_ipc";
    case MemoryKind::rocm:
      return "rocm_ipc";
  }
  return {};
}

Result<std::shared_ptr<const LibraryContext>> LibraryContext::create(const Api& api, std::shared_ptr<Engine> engine, For use) {
  const auto made = std::shared_ptr<LibraryContext>(new LibraryContext(api, std::move(engine), use));
  HMC_TRY(made->open());
  return std::shared_ptr<const LibraryContext>(made);
}

// Twice: what may be asked for depends on what is there.
Status LibraryContext::open() {
  HMC_TRY(start());
  const auto only_now = [&](const Setting& setting) { return setting.matters != nullptr && applies(setting, api_, transports_); };
  if (!rdma() && !shares_any() && std::ranges::none_of(settings, only_now)) return {};
  api_.cleanup(std::exchange(handle_, nullptr));
  return start();
}

Status LibraryContext::start() {
  ucp_config_t* config = nullptr;
  if (const auto status = api_.config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return api_.status("reading its configuration", status);
  }
  for (const Setting& setting : settings) {
    if (!applies(setting, api_, transports_)) continue;
    static_cast<void>(api_.config_modify(config, setting.key, setting.value));  // a version without that setting needs none
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_WAKEUP;
  if (for_ == For::peers) params.features |= UCP_FEATURE_AM;
  // Between peers only for network cards and device memory: what UCX emulates without them writes to any address that a message
  // names.
  if (for_ == For::programs || rdma() || shares_any()) params.features |= UCP_FEATURE_RMA;
  params.mt_workers_shared = 1;  // memory is registered without the engine lock
  // What this was compiled for, or what is there if that is less: only fields that both know are used.
  const auto status = api_.init_version(UCP_API_MAJOR, std::min<unsigned>(UCP_API_MINOR, api_.minor), &params, config, &handle_);
  api_.config_release(config);
  if (status != UCS_OK) {
    handle_ = nullptr;
    return api_.status("starting", status);
  }
  transports_ = printed_transports("resource", [&](std::FILE* file) { api_.context_print_info(handle_, file); });
  return {};
}

LibraryContext::~LibraryContext() {
  if (handle_ != nullptr && !forked()) api_.cleanup(handle_);
}

bool LibraryContext::rdma() const noexcept { return network_cards(transports_); }

bool LibraryContext::shares(MemoryKind kind) const noexcept {
  return kind != MemoryKind::host && std::ranges::find(transports_, sharing_transport(kind)) != transports_.end();
}

bool LibraryContext::shares_any() const noexcept { return shares(MemoryKind::cuda) || shares(MemoryKind::rocm); }

bool LibraryContext::long_segments(const std::vector<std::string>& lanes) const noexcept {
  return lanes.size() == 1 && lanes.front() == "tcp" && applies(tcp_segments, api_, transports_);
}

std::vector<std::string> LibraryContext::lanes(ucp_ep_h endpoint) const {
  return printed_transports("lane[", [&](std::FILE* file) { api_.ep_print_info(endpoint, file); });
}

Result<ucp_mem_h> LibraryContext::map(const RegionView& view) const {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_PROT;
  params.address = view.span.data;
  params.length = view.span.bytes;
  params.prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_READ;
  if (view.access == Access::read_write) params.prot |= UCP_MEM_MAP_PROT_REMOTE_WRITE;
  if (!view.span.device.is_cpu()) {
    const auto kind = kind_of(view.span.device);
    if (!kind || !shares(*kind)) {
      return Status(Code::unsupported, "UCX has no way here for memory of " + view.span.device.str() + " between processes");
    }
    // What has none, UCX would copy by the processor.
    HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(view.span.device));
    HMC_TRY(runtime->sharing().export_handle(view.span, HandleKind::ipc).status());
    params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    params.memory_type = type_of(*kind);
  }
  ucp_mem_h handle = nullptr;
  auto status = api_.mem_map(handle_, &params, &handle);
  if (status != UCS_OK && view.access == Access::read) {  // memory that this process itself may only read
    params.prot &= ~static_cast<unsigned>(UCP_MEM_MAP_PROT_LOCAL_WRITE);
    status = api_.mem_map(handle_, &params, &handle);
  }
  if (status != UCS_OK) return api_.status("registering " + std::to_string(view.span.bytes) + " bytes", status);
  return handle;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace hmc::ucx
