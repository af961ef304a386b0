// LibraryContext: one ucp_context, which a Context registers memory with and makes its worker of.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "progress/engine.h"
#include "transport/transport.h"
#include "transport/ucx/api.h"
#include "transport/ucx/wire.h"

namespace hmc::ucx {

class LibraryContext {
 public:
  enum class For : bool { peers, programs };  // peers of HMC's; programs that are not HMC (native.h)
  static Result<std::shared_ptr<const LibraryContext>> create(const Api& api, std::shared_ptr<Engine> engine, For use = For::peers);
  ~LibraryContext();
  LibraryContext(const LibraryContext&) = delete;
  LibraryContext& operator=(const LibraryContext&) = delete;

  [[nodiscard]] const Api& api() const noexcept { return api_; }
  [[nodiscard]] ucp_context_h handle() const noexcept { return handle_; }
  [[nodiscard]] Engine& engine() const noexcept { return *engine_; }
  [[nodiscard]] const std::shared_ptr<Engine>& shared_engine() const noexcept { return engine_; }
  // In a forked child everything of UCX is the parent's.
  [[nodiscard]] bool forked() const noexcept { return engine_->forked(); }
  // UCX's transports here, each once: "tcp", "sysv", "rc_mlx5".
  [[nodiscard]] const std::vector<std::string>& transports() const noexcept { return transports_; }
  [[nodiscard]] bool rdma() const noexcept;
  // Whether it has a way for device memory of that kind between processes of a host.
  [[nodiscard]] bool shares(MemoryKind kind) const noexcept;
  // UCX's transports that carry the endpoint, as UCX names them.
  [[nodiscard]] std::vector<std::string> lanes(ucp_ep_h endpoint) const;
  // Registers memory; its key lets others do as `view` allows. Any thread.
  [[nodiscard]] Result<ucp_mem_h> map(const RegionView& view) const;
  // Whether those take max_piece bytes in one piece.
  [[nodiscard]] bool long_segments(const std::vector<std::string>& lanes) const noexcept;

 private:
  LibraryContext(const Api& api, std::shared_ptr<Engine> engine, For use) noexcept
      : api_(api), engine_(std::move(engine)), for_(use) {}
  Status open();
  [[nodiscard]] bool shares_any() const noexcept;
  Status start();  // knowing what transports there are, if it was called before

  const Api& api_;
  std::shared_ptr<Engine> engine_;
  const For for_;
  ucp_context_h handle_ = nullptr;
  std::vector<std::string> transports_;
};

// Whether UCX's transport of that name lets a network card write the peer's memory.
bool writes_memory(const std::string& transport) noexcept;
// The kind of a device's memory; nullopt: UCX knows none for it.
std::optional<MemoryKind> kind_of(const Device& device) noexcept;
ucs_memory_type_t type_of(MemoryKind kind) noexcept;
// UCX's transport that moves device memory of that kind between processes of a host; empty for host memory.
std::string_view sharing_transport(MemoryKind kind) noexcept;
std::string joined(const std::vector<std::string>& words);

}  // namespace hmc::ucx
