// One dispatch or combine of an hmc.experts.Buffer: the steps that it takes with every rank.
#pragma once

#include <hmc/row_copies.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "expert_received.h"
#include "members.h"

namespace hmc::bindings {

// The steps of a call. Each is done once with a rank, and what is done is noted before an interrupt can come: a step may be
// repeated with the same ranks. Steps return what failed, as (rank, exception). One thread at a time; GIL held.
class ExpertCall {
 public:
  using Ranks = std::vector<std::int64_t>;

  // `outbox`, `window`: memory of layout.total_words().
  ExpertCall(const ExpertLayout& layout, ExpertStep step, std::int64_t number, py::handle outbox, py::handle window);
  virtual ~ExpertCall() = default;
  ExpertCall(const ExpertCall&) = delete;
  ExpertCall& operator=(const ExpertCall&) = delete;

  // Writes the headers for ranks into the outbox.
  void write(const Ranks& ranks);
  // Puts them into the ranks' windows. `windows`: by rank.
  py::list send(const Communicator& comm, const ConnBuffer& outbox, const std::vector<RemoteBuffer>& windows, const Ranks& ranks);
  // The ranks to which a header went, of these.
  [[nodiscard]] Ranks sent(const Ranks& ranks) const;
  // Waits for the notifications of the ranks' headers.
  py::list take(const Communicator& comm, const Ranks& ranks, const std::optional<double>& timeout);
  // Copies and checks the headers of ranks, taken or not.
  py::list read(const Ranks& ranks);
  // Waits for the transfers from ranks. Where this rank is among them, also for the copies that its device makes.
  py::list wait(const Ranks& ranks, const std::optional<double>& timeout);
  // The ranks whose headers were read, of these.
  [[nodiscard]] Ranks came(const Ranks& ranks) const;
  // The transfers from a rank.
  [[nodiscard]] std::vector<Work> works(std::int64_t rank) const { return at(rank).works; }
  // Notifies ranks that this one has read what it reads of them. Does not wait, and ignores errors.
  void acknowledge(const Communicator& comm, const Ranks& ranks, std::uint64_t notification);
  // Throws PeerLostError where one of the ranks has masked this one.
  void check_not_masked(const Ranks& ranks) const;

 protected:
  // Rows to read: offsets in a local and in a remote buffer.
  struct Blocks {
    ConnBuffer into;
    RemoteBuffer from;
    std::vector<std::uint64_t> targets, sources;
    std::size_t bytes = 0;
  };
  using Plan = std::vector<Blocks>;

  virtual std::size_t write_header(std::int64_t rank, std::span<std::int64_t> out) = 0;
  virtual Status read_header(std::int64_t rank, std::span<const std::int64_t> in) = 0;
  // Until the device has loaded what load() started, or failed. GIL held.
  [[nodiscard]] virtual Status wait_for_loads(Deadline /*deadline*/) { return {}; }
  // The rank's rows need no transfer.
  void skip(std::int64_t rank) { at(rank).got = true; }
  // They do after all.
  void fetch_again(std::int64_t rank) { at(rank).got = false; }
  // Starts the transfers from a rank that have not started. Without the GIL.
  Status get(const Member& member, std::int64_t rank, const Plan& plan);
  [[nodiscard]] bool got(std::int64_t rank) const { return at(rank).got; }
  // Those of the ranks whose transfers have not started.
  [[nodiscard]] Ranks not_got(const Ranks& ranks) const;
  [[nodiscard]] std::int64_t number() const noexcept { return number_; }

 private:
  struct Progress {
    std::size_t words = 0;
    bool sent = false, taken = false, read = false, got = false, acknowledged = false;
    std::vector<Work> works;
  };
  Progress& at(std::int64_t rank);
  [[nodiscard]] const Progress& at(std::int64_t rank) const { return const_cast<ExpertCall*>(this)->at(rank); }
  [[nodiscard]] std::span<std::int64_t> words(const MemoryView& memory, std::int64_t rank) const;

  const ExpertLayout layout_;
  const ExpertStep step_;
  const std::int64_t number_;
  const MemoryView outbox_, window_;
  std::vector<Progress> progress_;  // by rank
};

// Steps' results: (rank, exception).
py::list as_exceptions(const std::vector<std::pair<std::int64_t, Status>>& failures);

// ---- expert_calls.cc ----
// Throws where they were made for other layouts.
void check_alike(const ExpertRoutes& routes, const ExpertReceived& received);

class ExpertDispatch final : public ExpertCall {
 public:
  // Where rows or scales go: (ConnBuffer, bytes of a row, offset of the first in the sources' memory).
  using Part = std::tuple<ConnBuffer, std::size_t, std::uint64_t>;

  ExpertDispatch(std::shared_ptr<const ExpertRoutes> routes, std::shared_ptr<ExpertReceived> received, std::int64_t number,
                 py::handle outbox, py::handle window)
      : ExpertCall(routes->layout(), ExpertStep::dispatch, number, outbox, window),
        routes_(std::move(routes)),
        received_(std::move(received)),
        copies_(static_cast<std::size_t>(routes_->layout().ranks)) {
    check_alike(*routes_, *received_);
  }

  // Starts to copy the rows of ranks whose memory `device` can load from; a wait() for this rank waits for them. Returns the
  // others, whose rows get() takes.
  Ranks load(const py::object& device, const std::vector<Part>& parts, const std::vector<RemoteBuffer>& sources,
             const Ranks& ranks);
  // Starts to get the rows of ranks. `sources`, `mapped`: by rank. A token that is not in mapped memory is transferred once, and
  // copies() makes its other rows.
  py::list get(const Communicator& comm, const std::vector<Part>& parts, const std::vector<RemoteBuffer>& sources,
               const std::vector<bool>& mapped, const Ranks& ranks);
  // (rows to copy, rows to write).
  [[nodiscard]] std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> copies() const;

 private:
  struct Rows {
    std::vector<std::int64_t> rows, tokens;
  };
  std::size_t write_header(std::int64_t rank, std::span<std::int64_t> out) override;
  Status read_header(std::int64_t rank, std::span<const std::int64_t> in) override;
  Rows wanted(std::int64_t rank, bool mapped);
  struct Loadable {
    std::int64_t rank;
    LoadableBytes memory;
  };
  Result<RowCopies> copy(const Part& part, const std::vector<Loadable>& sources, const Device& by) const;
  Status wait_for_loads(Deadline deadline) override;

  const std::shared_ptr<const ExpertRoutes> routes_;
  const std::shared_ptr<ExpertReceived> received_;
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> copies_;  // by rank
  std::vector<RowCopies> loads_;                                            // whose end was not seen yet
  Ranks loaded_;                                                            // whose rows they copy
};

class ExpertCombine final : public ExpertCall {
 public:
  ExpertCombine(std::shared_ptr<const ExpertRoutes> routes, std::shared_ptr<const ExpertReceived> received, std::int64_t number,
                py::handle outbox, py::handle window)
      : ExpertCall(routes->layout(), ExpertStep::combine, number, outbox, window),
        routes_(std::move(routes)),
        received_(std::move(received)),
        headers_(static_cast<std::size_t>(routes_->layout().ranks)),
        terms_(routes_->choice().tokens * routes_->width()) {
    check_alike(*routes_, *received_);
  }

  // Before write(): the buffer with this rank's results. Without it the rank has none.
  void offer(const py::bytes& descriptor);
  // The buffer with the results of a rank; empty: it has none.
  [[nodiscard]] py::bytes descriptor(std::int64_t rank) const;
  using Sources = std::vector<std::pair<std::int64_t, RemoteBuffer>>;  // (rank, its buffer with results)
  // Leaves results of `row_bytes` where they are if `device` can load them: add_up() does. The ranks of the others.
  Ranks load(const py::object& device, std::size_t row_bytes, const Sources& sources);
  // Starts to get results into rows of `row_bytes`.
  py::list get(const Communicator& comm, const ConnBuffer& into, std::size_t row_bytes, const Sources& sources);
  // The weighted sum of what load() and get() found, without the results of `missing` ranks: how many it has. `out`: of the device
  // of load() and of get()'s rows, which computes.
  std::size_t add_up(const py::object& out, const py::object& dtype, const Ranks& missing) const;

 private:
  std::size_t write_header(std::int64_t rank, std::span<std::int64_t> out) override;
  Status read_header(std::int64_t rank, std::span<const std::int64_t> in) override;
  // Rows of a rank's results, in the order of pairs_to(). Errors: protocol.
  Result<std::vector<std::int64_t>> rows_at(std::int64_t rank, std::size_t count) const;
  Status get_from(std::int64_t rank, const RemoteBuffer& source, const Member& member, const ConnBuffer& into,
                  std::size_t row_bytes);

  const std::shared_ptr<const ExpertRoutes> routes_;
  const std::shared_ptr<const ExpertReceived> received_;
  std::string descriptor_;
  std::vector<CombineHeader> headers_;    // by rank
  std::vector<const std::byte*> terms_;   // by pair: its result, in memory that by_ reaches
  std::optional<Device> by_;              // empty: there are none
  std::vector<LoadableBytes> loadables_;  // that terms_ points into
  std::size_t row_bytes_ = 0;             // of those rows
};

}  // namespace hmc::bindings
