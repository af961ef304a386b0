// libucp, found at run time.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <string_view>

#include "hmc/status.h"

namespace hmc::ucx {

// Whether the environment has that variable of UCX's.
bool set_by_user(const char* variable);

struct Api {
  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_modify) config_modify = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_context_print_info) context_print_info = nullptr;
  decltype(&::ucp_mem_map) mem_map = nullptr;
  decltype(&::ucp_mem_unmap) mem_unmap = nullptr;
  decltype(&::ucp_rkey_pack) rkey_pack = nullptr;
  decltype(&::ucp_rkey_buffer_release) rkey_buffer_release = nullptr;
  decltype(&::ucp_ep_rkey_unpack) ep_rkey_unpack = nullptr;
  decltype(&::ucp_rkey_destroy) rkey_destroy = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&::ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_worker_set_am_recv_handler) worker_set_am_recv_handler = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close_nbx = nullptr;
  decltype(&::ucp_ep_flush_nbx) ep_flush_nbx = nullptr;
  decltype(&::ucp_ep_print_info) ep_print_info = nullptr;
  decltype(&::ucp_put_nbx) put_nbx = nullptr;
  decltype(&::ucp_get_nbx) get_nbx = nullptr;
  decltype(&::ucp_am_send_nbx) am_send_nbx = nullptr;
  decltype(&::ucp_request_check_status) request_check_status = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  decltype(&::ucs_status_string) status_string = nullptr;

  unsigned major = 0, minor = 0, release = 0;
  std::string path;  // where it was found

  // Joins the copy that this process has loaded, else loads one, at the first call. Errors: unsupported, with the reason.
  static Result<const Api*> get();
  [[nodiscard]] std::string version() const;
  [[nodiscard]] Status status(std::string_view what, ucs_status_t code) const;
};

}  // namespace hmc::ucx
