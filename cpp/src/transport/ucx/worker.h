// Worker: one ucp_worker: what a link to one peer does goes through it, and no other link uses it. It listens on ports of its own.
//
// One for each peer, because ending it is the only thing that surely ends what UCX has under way: versions differ in whether
// closing an endpoint by force ends gets that UCX emulates, and an answer that comes late would be written to memory that is
// somebody else's by then.
//
// UCX's callbacks run inside its progress call, from where nothing may be closed: bytes of puts and gets go straight to where they
// belong, all else is only noted, and deliver() tells the link afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "base/blob.h"
#include "transport/ucx/library_context.h"
#include "transport/ucx/requests.h"

namespace hmc::ucx {

class UcxEndpoint;

// Engine lock held throughout.
class Worker final : public FdHandler {
 public:
  static Result<std::shared_ptr<Worker>> create(std::shared_ptr<const LibraryContext> context);
  ~Worker() { close(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  [[nodiscard]] const LibraryContext& context() const noexcept { return *context_; }
  [[nodiscard]] const Api& api() const noexcept { return context_->api(); }
  [[nodiscard]] bool is_open() const noexcept { return handle_ != nullptr; }
  [[nodiscard]] const Bytes& address() const noexcept { return address_; }
  [[nodiscard]] ucp_ep_h endpoint() const noexcept { return endpoint_; }

  // Messages that carry the link's token are its own; those that came before are nobody's.
  void serve(UcxEndpoint& endpoint) noexcept { served_ = &endpoint; }
  // To the worker that has that address.
  Status connect(const Bytes& peer);
  Result<ucp_rkey_h> unpack(const Bytes& key);
  void destroy(ucp_rkey_h key) noexcept;

  // A request that a device carries out is with UCX.
  void began_on_device() noexcept { ++on_device_; }

  // Not from within a callback of UCX's.
  bool progress() { return api().worker_progress(handle_) != 0; }
  [[nodiscard]] bool has_news() const noexcept {
    return !news_.empty() || failure_ != UCS_OK || (delivering_ != nullptr && !delivering_->empty());
  }
  // The link may be closed by what it does with it, and may come back here.
  void deliver();
  // False: something is to be done first.
  bool arm();
  // UCX lets go of everything: afterwards it touches the memory of no operation.
  void close() noexcept;

  static void on_ended(void* request, ucs_status_t status, void* user);

 private:
  struct Arrival {
    MessageHead head;
    std::size_t at;
    std::size_t bytes;
    bool sound;
  };
  // What UCX has reported. Delivered from the front; a body stays where it is until all of them have been.
  struct Batch {
    std::vector<Request*> ended;
    std::vector<Arrival> arrivals;
    Bytes bytes;
    std::size_t next_ended = 0, next_arrival = 0;
    [[nodiscard]] bool empty() const noexcept { return next_ended == ended.size() && next_arrival == arrivals.size(); }
    void clear() noexcept {
      ended.clear();
      arrivals.clear();
      bytes.clear();
      next_ended = next_arrival = 0;
    }
  };

  explicit Worker(std::shared_ptr<const LibraryContext> context) noexcept : context_(std::move(context)) {}
  Status open();
  void on_ready(std::uint32_t events) override;
  void hand_over(Batch& batch);
  static ucs_status_t on_message(void* worker, const void* head, std::size_t head_bytes, void* data, std::size_t bytes,
                                 const ucp_am_recv_param_t* param);

  std::shared_ptr<const LibraryContext> context_;
  ucp_worker_h handle_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  UcxEndpoint* served_ = nullptr;
  int descriptor_ = -1;   // UCX's
  bool watching_ = true;  // the engine, the descriptor
  Bytes address_;
  std::set<ucp_rkey_h> keys_;
  ucs_status_t failure_ = UCS_OK;
  std::size_t on_device_ = 0;  // such requests that have not ended
  Batch news_, spare_;
  Batch* delivering_ = nullptr;
};

}  // namespace hmc::ucx
