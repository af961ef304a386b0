#include "transport/ucx/api.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/env.h"
#include "device/library.h"

namespace hmc::ucx {
namespace {

// Wheels of others carry copies under changed names: libucp-1a2b3c4d.so.0.0.0.
constexpr std::string_view stem = "libucp";
constexpr std::array<std::string_view, 1> versions{"so.0"};
constexpr std::string_view variable = "HMC_UCX_LIBRARY";
constexpr unsigned oldest_minor = 12;  // of 1.x: the first whose calls are all there

struct Loaded {
  VendorLibrary library{LibraryRow{variable, stem, versions, {}}};
  Api api;
  Status status;
};

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return std::filesystem::equivalent(a, b, error);
}

// Two copies would patch the same functions of the C library and both handle the same signals.
Status refuse_second_copy(const std::optional<std::string>& present) {
  const auto named = env_text(variable);
  if (!named || *named == "off" || !present || same_file(*named, *present)) return {};
  return Status(Code::unsupported, "this process has loaded " + *present + " already; " + std::string(variable) + "=" + *named +
                                       " would be a second copy of UCX");
}

// UCX takes over SIGSEGV and others when it is loaded, to print where it happened. They are the program's: given back unless the
// user has asked UCX for them, or somebody else has loaded it.
void give_back_signals(const VendorLibrary& library) {
  if (set_by_user("UCX_ERROR_SIGNALS") || set_by_user("UCX_HANDLE_ERRORS")) return;
  void (*disable)() = nullptr;
  library.load(disable, "ucs_debug_disable_signals");
  if (disable != nullptr) disable();
}

void open(Loaded& made) {
  const auto present = VendorLibrary::loaded_copy(stem);
  made.status = refuse_second_copy(present);
  if (made.status.ok()) made.status = made.library.open();
  if (!made.status.ok()) return;
  if (!present) give_back_signals(made.library);
  Api& api = made.api;
  api.path = made.library.path();
  const auto take = [&](auto& function, const char* name) {
    made.library.load(function, name);
    if (function == nullptr && made.status.ok()) made.status = Status(Code::unsupported, api.path + " has no " + name);
  };
  decltype(&::ucp_get_version) get_version = nullptr;
  take(get_version, "ucp_get_version");
  if (!made.status.ok()) return;
  get_version(&api.major, &api.minor, &api.release);
  if (api.major != UCP_API_MAJOR || api.minor < oldest_minor) {
    made.status = Status(Code::unsupported, api.path + " is UCX " + api.version() + "; at least 1." + std::to_string(oldest_minor) +
                                                " is needed (pip install libucx-cu12)");
    return;
  }
  take(api.config_read, "ucp_config_read");
  take(api.config_modify, "ucp_config_modify");
  take(api.config_release, "ucp_config_release");
  take(api.init_version, "ucp_init_version");
  take(api.cleanup, "ucp_cleanup");
  take(api.context_print_info, "ucp_context_print_info");
  take(api.mem_map, "ucp_mem_map");
  take(api.mem_unmap, "ucp_mem_unmap");
  take(api.rkey_pack, "ucp_rkey_pack");
  take(api.rkey_buffer_release, "ucp_rkey_buffer_release");
  take(api.ep_rkey_unpack, "ucp_ep_rkey_unpack");
  take(api.rkey_destroy, "ucp_rkey_destroy");
  take(api.worker_create, "ucp_worker_create");
  take(api.worker_destroy, "ucp_worker_destroy");
  take(api.worker_get_address, "ucp_worker_get_address");
  take(api.worker_release_address, "ucp_worker_release_address");
  take(api.worker_get_efd, "ucp_worker_get_efd");
  take(api.worker_arm, "ucp_worker_arm");
  take(api.worker_progress, "ucp_worker_progress");
  take(api.worker_set_am_recv_handler, "ucp_worker_set_am_recv_handler");
  take(api.ep_create, "ucp_ep_create");
  take(api.ep_close_nbx, "ucp_ep_close_nbx");
  take(api.ep_flush_nbx, "ucp_ep_flush_nbx");
  take(api.ep_print_info, "ucp_ep_print_info");
  take(api.put_nbx, "ucp_put_nbx");
  take(api.get_nbx, "ucp_get_nbx");
  take(api.am_send_nbx, "ucp_am_send_nbx");
  take(api.request_check_status, "ucp_request_check_status");
  take(api.request_free, "ucp_request_free");
  take(api.status_string, "ucs_status_string");
}

}  // namespace

bool set_by_user(const char* name) { return std::getenv(name) != nullptr; }

Result<const Api*> Api::get() {
  // For ever: UCX keeps a thread and handlers of its own.
  static Loaded& loaded = *[] {
    auto* made = new Loaded;
    open(*made);
    return made;
  }();
  if (!loaded.status.ok()) return loaded.status;
  return &loaded.api;
}

std::string Api::version() const { return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release); }

Status Api::status(std::string_view what, ucs_status_t code) const {
  const Code kind = code == UCS_ERR_NO_MEMORY     ? Code::out_of_memory
                    : code == UCS_ERR_UNREACHABLE ? Code::unsupported
                                                  : Code::transport;
  return Status(kind, "UCX: " + std::string(what) + ": " + status_string(code), code);
}

}  // namespace hmc::ucx
