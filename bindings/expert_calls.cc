// Dispatch and combine as calls: headers and rows of each.
#include <hmc/weighted_sum.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "collectives.h"
#include "element_type.h"
#include "expert_call.h"

namespace hmc::bindings {
namespace {

constexpr auto look_interval = std::chrono::milliseconds(100);  // for signals, in what waits below HMC's progress

std::vector<std::uint64_t> offsets(std::span<const std::int64_t> rows, std::size_t row_bytes, std::uint64_t base = 0) {
  std::vector<std::uint64_t> found(rows.size());
  std::ranges::transform(rows, found.begin(), [&](std::int64_t row) { return static_cast<std::uint64_t>(row) * row_bytes + base; });
  return found;
}

// Calls `step` with every element of `ranks`, without the GIL, and returns the errors.
template <class Ranks, class Step>
py::list without_gil(const Ranks& ranks, Step step) {
  std::vector<std::pair<std::int64_t, Status>> failures;
  {
    const ReleasedGil nogil;
    for (const auto& one : ranks) {
      if (auto [rank, status] = step(one); !status.ok()) failures.emplace_back(rank, std::move(status));
    }
  }
  return as_exceptions(failures);
}

}  // namespace

void check_alike(const ExpertRoutes& routes, const ExpertReceived& received) {
  if (!(routes.layout() == received.layout())) refuse("routes and received rows of two layouts");
}

std::size_t ExpertDispatch::write_header(std::int64_t rank, std::span<std::int64_t> out) {
  return write_dispatch(*routes_, number(), rank, out);
}

Status ExpertDispatch::read_header(std::int64_t rank, std::span<const std::int64_t> in) {
  HMC_ASSIGN(DispatchHeader header, read_dispatch(received_->layout(), number(), rank, in));
  received_->take(rank, std::move(header));
  return {};
}

ExpertDispatch::Rows ExpertDispatch::wanted(std::int64_t rank, bool mapped) {
  Rows all{received_->rows_of(rank), received_->tokens_of(rank)};
  if (mapped || all.tokens.empty()) return all;
  auto& copies = copies_[static_cast<std::size_t>(rank)];
  copies.clear();
  std::vector<std::int64_t> first(static_cast<std::size_t>(*std::ranges::max_element(all.tokens)) + 1, -1);  // by token: its row
  for (std::size_t pair = 0; pair < all.tokens.size(); ++pair) {
    std::int64_t& row = first[static_cast<std::size_t>(all.tokens[pair])];
    if (row < 0) {
      row = all.rows[pair];
    } else {
      copies.emplace_back(row, all.rows[pair]);
    }
  }
  Rows once;
  for (std::size_t token = 0; token < first.size(); ++token) {
    if (first[token] < 0) continue;
    once.rows.push_back(first[token]);
    once.tokens.push_back(static_cast<std::int64_t>(token));
  }
  return once;
}

Result<RowCopies> ExpertDispatch::copy(const Part& part, const std::vector<Loadable>& sources, const Device& by) const {
  const auto& [into, row_bytes, base] = part;
  auto* const to = static_cast<std::byte*>(into.memory().data());
  std::vector<RowCopy> copies;
  copies.reserve(static_cast<std::size_t>(received_->rows()));
  for (const auto& [rank, memory] : sources) {
    const std::vector<std::int64_t> rows = received_->rows_of(rank);
    const std::vector<std::int64_t>& tokens = received_->tokens_of(rank);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      copies.push_back({to + static_cast<std::size_t>(rows[i]) * row_bytes,
                        memory.bytes.data() + base + static_cast<std::size_t>(tokens[i]) * row_bytes});
    }
  }
  auto keep = std::make_shared<std::pair<std::vector<Loadable>, Memory>>(sources, into.memory());
  return RowCopies::start(copies, row_bytes, by, std::move(keep));
}

ExpertCall::Ranks ExpertDispatch::load(const py::object& device, const std::vector<Part>& parts,
                                       const std::vector<RemoteBuffer>& sources, const Ranks& ranks) {
  const Device by = device_of(device);
  const ReleasedGil nogil;
  std::vector<Loadable> there;
  for (const std::int64_t rank : ranks) {
    if (got(rank)) continue;
    Loadable found{rank, sources.at(static_cast<std::size_t>(rank)).loadable(by)};
    const bool whole = std::ranges::all_of(parts, [&](const Part& part) {
      const auto& [into, row_bytes, base] = part;
      return base + static_cast<std::size_t>(received_->layout().tokens) * row_bytes <= found.memory.bytes.size();
    });
    if (found.memory.mapping != nullptr && whole) there.push_back(std::move(found));
  }
  for (const Part& part : parts) {
    Result<RowCopies> copies = copy(part, there, by);
    if (!copies.ok()) return not_got(ranks);  // get() says of which rank
    loads_.push_back(std::move(*copies));
  }
  for (const Loadable& source : there) {
    skip(source.rank);
    loaded_.push_back(source.rank);
  }
  return not_got(ranks);
}

Status ExpertDispatch::wait_for_loads(Deadline deadline) {
  Status outcome;
  for (const RowCopies& copies : loads_) {
    Status status;
    do {
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      const ReleasedGil nogil;
      status = copies.wait(Deadline::at(std::min(deadline.when(), Deadline::after(look_interval).when())));
    } while (status.code() == Code::timeout && !deadline.passed());
    if (status.code() == Code::timeout) return status;
    if (outcome.ok()) outcome = std::move(status);
  }
  if (!outcome.ok()) {  // a resumed call loads or transfers these rows again
    for (const std::int64_t rank : loaded_) fetch_again(rank);
  }
  loaded_.clear();
  const ReleasedGil nogil;  // to unmap a peer's memory may wait for the device
  loads_.clear();
  return outcome;
}

py::list ExpertDispatch::get(const Communicator& comm, const std::vector<Part>& parts, const std::vector<RemoteBuffer>& sources,
                             const std::vector<bool>& mapped, const Ranks& ranks) {
  const Member& member = member_of(comm);
  return without_gil(ranks, [&](std::int64_t rank) -> std::pair<std::int64_t, Status> {
    if (got(rank)) return {rank, Status()};
    const auto source = static_cast<std::size_t>(rank);
    const Rows found = wanted(rank, mapped.at(source));
    Plan plan;
    for (const auto& [into, row_bytes, base] : parts) {
      if (found.rows.empty()) break;
      plan.push_back({into, sources.at(source), offsets(found.rows, row_bytes), offsets(found.tokens, row_bytes, base), row_bytes});
    }
    return {rank, ExpertCall::get(member, rank, plan)};
  });
}

std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> ExpertDispatch::copies() const {
  std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> found;
  for (const auto& of_rank : copies_) {
    for (const auto& [source, target] : of_rank) {
      found.first.push_back(source);
      found.second.push_back(target);
    }
  }
  return found;
}

std::size_t ExpertCombine::write_header(std::int64_t rank, std::span<std::int64_t> out) {
  return write_combine(number(), descriptor_, received_->starts_of(rank), out);
}

Status ExpertCombine::read_header(std::int64_t rank, std::span<const std::int64_t> in) {
  HMC_ASSIGN(headers_[static_cast<std::size_t>(rank)], read_combine(routes_->layout(), number(), rank, in));
  return {};
}

void ExpertCombine::offer(const py::bytes& descriptor) {
  constexpr std::size_t most = sizeof(std::int64_t) * ExpertLayout::descriptor_words;
  if (py::len(descriptor) > most) refuse("a descriptor has at most " + std::to_string(most) + " bytes");
  descriptor_ = descriptor;
}

py::bytes ExpertCombine::descriptor(std::int64_t rank) const { return headers_.at(static_cast<std::size_t>(rank)).descriptor; }

Result<std::vector<std::int64_t>> ExpertCombine::rows_at(std::int64_t rank, std::size_t count) const {
  std::vector<std::int64_t> rows = rows_from(headers_[static_cast<std::size_t>(rank)].starts, routes_->counts_to(rank));
  if (std::ranges::any_of(rows, [&](std::int64_t row) { return static_cast<std::uint64_t>(row) >= count; })) {
    return Status(Code::protocol, "combine: rank " + std::to_string(rank) + " names a row beyond its " + std::to_string(count));
  }
  return rows;
}

ExpertCall::Ranks ExpertCombine::load(const py::object& device, std::size_t row_bytes, const Sources& sources) {
  const Device by = device_of(device);
  Ranks others;
  const ReleasedGil nogil;
  for (const auto& [rank, source] : sources) {
    if (got(rank)) continue;
    LoadableBytes there = source.loadable(by);
    const Result<std::vector<std::int64_t>> rows = rows_at(rank, there.bytes.size() / row_bytes);
    if (there.mapping == nullptr || !rows.ok()) {  // get() says what is wrong with them
      others.push_back(rank);
      continue;
    }
    const auto pairs = routes_->pairs_to(rank);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      terms_[static_cast<std::size_t>(pairs[i])] = there.bytes.data() + static_cast<std::size_t>((*rows)[i]) * row_bytes;
    }
    loadables_.push_back(std::move(there));
    by_ = by;
    row_bytes_ = row_bytes;
    skip(rank);
  }
  return others;
}

Status ExpertCombine::get_from(std::int64_t rank, const RemoteBuffer& source, const Member& member, const ConnBuffer& into,
                               std::size_t row_bytes) {
  const auto pairs = routes_->pairs_to(rank);
  if (got(rank) || pairs.empty()) return {};
  HMC_ASSIGN(const std::vector<std::int64_t> rows, rows_at(rank, source.size() / row_bytes));
  const auto* const base = static_cast<const std::byte*>(into.memory().data());
  for (const std::int64_t pair : pairs) {
    terms_[static_cast<std::size_t>(pair)] = base + static_cast<std::size_t>(pair) * row_bytes;
  }
  by_ = into.device();
  row_bytes_ = row_bytes;
  Plan plan;
  plan.push_back({into, source, offsets(pairs, row_bytes), offsets(rows, row_bytes), row_bytes});
  return ExpertCall::get(member, rank, plan);
}

py::list ExpertCombine::get(const Communicator& comm, const ConnBuffer& into, std::size_t row_bytes, const Sources& sources) {
  const Member& member = member_of(comm);
  return without_gil(sources, [&](const auto& source) -> std::pair<std::int64_t, Status> {
    return {source.first, get_from(source.first, source.second, member, into, row_bytes)};
  });
}

std::size_t ExpertCombine::add_up(const py::object& out, const py::object& dtype, const Ranks& missing) const {
  const MemoryView to = view_of(out, true);
  if (by_ && to.device != *by_) refuse("results that " + by_->str() + " reaches are added up into its memory");
  if (row_bytes_ != 0 && to.bytes != routes_->choice().tokens * row_bytes_) {
    refuse("sums of " + std::to_string(to.bytes) + " bytes for results of " + std::to_string(row_bytes_) + " bytes each");
  }
  const DataType type = element_type_of(py::none(), dtype);
  std::vector<const std::byte*> terms = terms_;
  Status done;
  {
    const ReleasedGil nogil;
    for (const std::int64_t rank : missing) {
      for (const std::int64_t pair : routes_->pairs_to(rank)) terms[static_cast<std::size_t>(pair)] = nullptr;
    }
    done = weighted_sum_of_rows({static_cast<std::byte*>(to.data), to.bytes}, terms, routes_->factors(), routes_->width(), type,
                                to.device);
  }
  check(done);
  return terms.size() - static_cast<std::size_t>(std::ranges::count(terms, nullptr));
}

}  // namespace hmc::bindings
