#include "transport/verbs/api.h"

#include <array>
#include <cstring>
#include <string_view>

#include "device/library.h"

namespace hmc::verbs {
namespace {

constexpr std::array<std::string_view, 1> versions{"1"};

struct Loaded {
  VendorLibrary library{LibraryRow{"HMC_VERBS_LIBRARY", "libibverbs.so", versions, {}}};
  Api api;
  Status status;
};

}  // namespace

Result<const Api*> Api::get() {
  // For ever: providers keep threads and handlers of their own.
  static Loaded& loaded = *[] {
    auto* made = new Loaded;
    made->status = made->library.open();
    if (!made->status.ok()) return made;
    Api& api = made->api;
    const auto take = [&](auto& function, const char* name) {
      made->library.load(function, name);
      if (function == nullptr && made->status.ok()) {
        made->status = Status(Code::unsupported, made->library.path() + " has no " + name);
      }
    };
    take(api.get_device_list, "ibv_get_device_list");
    take(api.free_device_list, "ibv_free_device_list");
    take(api.get_device_name, "ibv_get_device_name");
    take(api.open_device, "ibv_open_device");
    take(api.close_device, "ibv_close_device");
    take(api.query_device, "ibv_query_device");
    take(api.query_port_compatible, "ibv_query_port");
    take(api.query_gid, "ibv_query_gid");
    take(api.alloc_pd, "ibv_alloc_pd");
    take(api.dealloc_pd, "ibv_dealloc_pd");
    take(api.reg_mr, "ibv_reg_mr");
    made->library.load(api.reg_dmabuf_mr, "ibv_reg_dmabuf_mr");
    take(api.dereg_mr, "ibv_dereg_mr");
    take(api.create_comp_channel, "ibv_create_comp_channel");
    take(api.destroy_comp_channel, "ibv_destroy_comp_channel");
    take(api.create_cq, "ibv_create_cq");
    take(api.destroy_cq, "ibv_destroy_cq");
    take(api.get_cq_event, "ibv_get_cq_event");
    take(api.ack_cq_events, "ibv_ack_cq_events");
    take(api.create_qp, "ibv_create_qp");
    take(api.modify_qp, "ibv_modify_qp");
    take(api.destroy_qp, "ibv_destroy_qp");
    take(api.get_async_event, "ibv_get_async_event");
    take(api.ack_async_event, "ibv_ack_async_event");
    take(api.event_type_str, "ibv_event_type_str");
    take(api.wc_status_str, "ibv_wc_status_str");
    take(api.fork_init, "ibv_fork_init");
    // On kernels that do not copy pinned pages at fork() this keeps them with the parent; on others it is nothing. Refused when
    // somebody in this process has registered memory before: then it was theirs to decide.
    if (made->status.ok()) static_cast<void>(api.fork_init());
    return made;
  }();
  if (!loaded.status.ok()) return loaded.status;
  return &loaded.api;
}

// What the header's inline function does, but for the symbol that it would need.
int Api::query_port(ibv_context* context, std::uint8_t port, ibv_port_attr& out) const noexcept {
  std::memset(&out, 0, sizeof out);
  const verbs_context* extended = verbs_get_ctx(context);
  if (extended != nullptr && extended->sz >= sizeof *extended - offsetof(verbs_context, query_port) &&
      extended->query_port != nullptr) {
    return extended->query_port(context, port, &out, sizeof out);
  }
  return query_port_compatible(context, port, reinterpret_cast<_compat_ibv_port_attr*>(&out));
}

}  // namespace hmc::verbs
