// What UCX programs that are not HMC are told, and the workers that they connect to.
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.h"
#include "transport/ucx/library_context.h"

namespace hmc::ucx {

class UcxNativeLink;

// UCX's remote memory access, in a ucp_context of its own: what UCX emulates where there is no network card writes to whatever
// address a message names, so only those whom the program connects by connect_native() come near it. Engine lock held throughout.
class Native {
 public:
  Native(const Api& api, std::shared_ptr<Engine> engine) noexcept : api_(api), engine_(std::move(engine)) {}

  // Made at the first call.
  Result<std::shared_ptr<const LibraryContext>> context();
  bool poll();
  bool arm();

 private:
  friend class UcxNativeLink;
  const Api& api_;
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<const LibraryContext> context_;
  std::vector<UcxNativeLink*> links_;
};

// Memory that such programs may name; until its end.
class NativeRegion {
 public:
  static Result<std::unique_ptr<NativeRegion>> create(const RegionView& view, std::shared_ptr<const LibraryContext> context);
  ~NativeRegion();
  NativeRegion(const NativeRegion&) = delete;
  NativeRegion& operator=(const NativeRegion&) = delete;
  [[nodiscard]] NativeFields fields(const RegionView& view, std::size_t offset, std::size_t bytes) const;

 private:
  explicit NativeRegion(std::shared_ptr<const LibraryContext> context) noexcept : context_(std::move(context)) {}
  std::shared_ptr<const LibraryContext> context_;
  ucp_mem_h handle_ = nullptr;
  std::string key_;  // packed, as hexadecimal digits
};

// A worker of its own for one program, so that its end is the end of that connection alone. It answers, and asks nothing.
class UcxNativeLink final : public NativeLink, private FdHandler {
 public:
  // Errors: invalid_argument (UCX needs to know nothing of the peer, so no field is taken).
  static Result<std::unique_ptr<NativeLink>> create(const std::shared_ptr<Native>& native, const NativeFields& peer);
  ~UcxNativeLink() override;
  [[nodiscard]] NativeFields fields() const override;

 private:
  friend class Native;
  UcxNativeLink(std::shared_ptr<Native> native, std::shared_ptr<const LibraryContext> context) noexcept
      : native_(std::move(native)), context_(std::move(context)) {}
  Status open();
  bool poll() { return context_->api().worker_progress(worker_) != 0; }
  bool arm();
  void on_ready(std::uint32_t events) override;

  std::shared_ptr<Native> native_;
  std::shared_ptr<const LibraryContext> context_;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
  bool watching_ = true;
  std::string address_;  // hexadecimal digits
};

}  // namespace hmc::ucx
