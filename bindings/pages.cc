// Moves of pages between a cache here and one of a peer, for hmc.kv: from layouts and blocks to operations in flight in one call.
// In Python each step of that runs once in a transfer, with cold caches, and all of them took longer than a short prompt's pages.
#include <pybind11/numpy.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "arguments.h"
#include "common.h"
#include "hmc/layout.h"

namespace hmc::bindings {
namespace {

constexpr std::uint64_t most_batch_bytes = 64ULL << 20;  // of an operation: what a cancel cannot withdraw any more
constexpr std::uint64_t probed_tokens = 32;

// One side of a move, as hmc.kv._moves.Side.
struct Side {
  explicit Side(const py::tuple& side, const char* blocks_name)
      : layout(side[0].cast<Layout>()), blocks(copied_offsets_of(side[1], blocks_name)), first(side[2].cast<std::uint64_t>()) {}
  Layout layout;
  std::vector<std::uint64_t> blocks;
  std::uint64_t first;
};

template <class Buffer>
std::vector<Buffer> buffers_of(const py::sequence& given, const Layout& layout) {
  std::vector<Buffer> buffers;
  for (const py::object one : given) buffers.push_back(one.cast<Buffer>());  // the sequence may keep none of them
  if (buffers.size() != layout.buffers()) {
    refuse(std::to_string(buffers.size()) + " buffers of a layout that has " + std::to_string(layout.buffers()));
  }
  return buffers;
}

class PageMove {
 public:
  PageMove(Peer peer, const py::tuple& source, const py::tuple& target, std::uint64_t tokens, const py::sequence& near,
           const py::sequence& far, bool reading)
      : peer_(std::move(peer)),
        source_(source, "source blocks"),
        target_(target, "target blocks"),
        tokens_(tokens),
        near_(buffers_of<ConnBuffer>(near, (reading ? target_ : source_).layout)),
        far_(buffers_of<RemoteBuffer>(far, (reading ? source_ : target_).layout)),
        reading_(reading) {}

  // Of this process's cache: its blocks with the tokens.
  [[nodiscard]] std::uint64_t layer_bytes() const noexcept {
    const Layout& layout = (reading_ ? target_ : source_).layout;
    const std::uint64_t size = layout.extent(LayoutAxis::token), blocks = (tokens_ + size - 1) / size;
    return blocks * size * layout.extent(LayoutAxis::kv) * layout.heads().count * layout.extent(LayoutAxis::dim) * layout.element();
  }

  std::optional<std::uint64_t> post(py::list works, const std::pair<std::uint64_t, std::uint64_t>& layers, std::uint64_t shortest) {
    Posted posted;
    Status status;
    std::exception_ptr lack;  // of memory
    {
      const ReleasedGil nogil;
      try {
        status = post_runs({layers.first, layers.second}, shortest, posted);
      } catch (...) {
        lack = std::current_exception();
      }
    }
    give(works, posted.works);  // also before an error: they are in flight
    if (lack) std::rethrow_exception(lack);
    check(status);
    return posted.runs ? std::optional(posted.bytes) : std::nullopt;
  }

 private:
  struct Posted {
    bool runs = true;  // else the elements are to be converted
    std::uint64_t bytes = 0;
    std::vector<Work> works;
  };

  // Appends the works, which are in flight. Where Python has no memory for one, that one and the rest are cancelled or waited for.
  static void give(py::list& works, const std::vector<Work>& posted) {
    std::size_t given = 0;
    try {
      for (; given < posted.size(); ++given) {
        if (posted[given].valid()) works.append(make_work(posted[given]));
      }
    } catch (...) {
      const ReleasedGil nogil;
      for (const Work& work : std::span(posted).subspan(given)) {
        if (work.valid() && !work.cancel().ok()) static_cast<void>(work.wait());
      }
      throw;
    }
  }

  [[nodiscard]] Result<std::vector<LayoutRuns>> runs(std::uint64_t tokens, LayoutRange layers) const {
    return layout_runs(
        {source_.layout, {source_.blocks, source_.first}, target_.layout, {target_.blocks, target_.first}, tokens, 0, layers, {}});
  }

  // A few tokens show how long runs are: a list of all short runs would take longer than the move.
  Status look_at_length(std::uint64_t layer, std::uint64_t shortest) {
    HMC_ASSIGN(const std::vector<LayoutRuns> found, runs(std::min(tokens_, probed_tokens), {layer, 1}));
    std::uint64_t bytes = 0, count = 0;
    for (const LayoutRuns& one : found) {
      bytes += one.bytes * one.source_offsets.size();
      count += one.source_offsets.size();
    }
    short_ = shortest <= bytes && bytes < shortest * count;
    return {};
  }

  Status post_runs(LayoutRange layers, std::uint64_t shortest, Posted& posted) {
    if (shortest > 0 && !short_) {
      const Status looked = look_at_length(layers.first, shortest);
      posted.runs = looked.code() != Code::unsupported;
      if (!looked.ok()) return posted.runs ? looked : Status();
    }
    posted.runs = !(shortest > 0 && *short_);
    if (!posted.runs) return {};
    Result<std::vector<LayoutRuns>> found = runs(tokens_, layers);
    posted.runs = found.status().code() != Code::unsupported;
    if (!found.ok()) return posted.runs ? found.status() : Status();
    return post_all(*found, posted);
  }

  // Operations of runs of one length each, the longest first.
  Status post_all(std::vector<LayoutRuns>& all, Posted& posted) const {
    std::ranges::stable_sort(all, std::ranges::greater(), &LayoutRuns::bytes);
    std::vector<BlockPair> pairs;
    std::uint64_t held = 0;  // runs of the pairs
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::uint64_t bytes = all[i].bytes, most = std::max<std::uint64_t>(1, most_batch_bytes / bytes);
      for (std::size_t at = 0; at < all[i].source_offsets.size();) {
        const std::size_t count = std::min<std::uint64_t>(all[i].source_offsets.size() - at, most - held);
        pairs.push_back(pair_of(all[i], at, count));
        at += count;
        held += count;
        const bool last = at == all[i].source_offsets.size() && (i + 1 == all.size() || all[i + 1].bytes != bytes);
        if (held < most && !last) continue;
        HMC_ASSIGN(const BlockBatch batch, peer_.prepare_blocks(pairs, bytes));
        posted.works.emplace_back();  // before the post, behind which nothing may fail
        HMC_ASSIGN(posted.works.back(), reading_ ? peer_.get_blocks(batch) : peer_.put_blocks(batch));
        posted.bytes += held * bytes;
        pairs.clear();
        held = 0;
      }
    }
    return {};
  }

  [[nodiscard]] BlockPair pair_of(const LayoutRuns& runs, std::size_t at, std::size_t count) const {
    const auto from = std::span(runs.source_offsets).subspan(at, count), to = std::span(runs.target_offsets).subspan(at, count);
    if (reading_) return {near_[runs.target_buffer], far_[runs.source_buffer], to, from};
    return {near_[runs.source_buffer], far_[runs.target_buffer], from, to};
  }

  const Peer peer_;
  const Side source_, target_;
  const std::uint64_t tokens_;
  const std::vector<ConnBuffer> near_;
  const std::vector<RemoteBuffer> far_;
  const bool reading_;
  std::optional<bool> short_;  // known from the first layer; alike in all
};

// The numbers of a list of 1 to `most` ints below `end`; None for anything else.
std::optional<py::array_t<std::uint64_t>> block_numbers(const py::object& blocks, py::ssize_t most, std::uint64_t end) {
  if (PyList_CheckExact(blocks.ptr()) == 0) return std::nullopt;
  const py::ssize_t count = PyList_GET_SIZE(blocks.ptr());
  if (count < 1 || count > most) return std::nullopt;
  py::array_t<std::uint64_t> numbers(count);
  std::uint64_t* const out = numbers.mutable_data();
  for (py::ssize_t i = 0; i < count; ++i) {  // calls no code of Python's, which might change the list
    PyObject* const one = PyList_GET_ITEM(blocks.ptr(), i);
    if (PyLong_CheckExact(one) == 0) return std::nullopt;
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(one, &overflow);
    if (overflow != 0 || number < 0 || static_cast<std::uint64_t>(number) >= end) return std::nullopt;
    out[i] = static_cast<std::uint64_t>(number);
  }
  return numbers;
}

using Numbers = py::array_t<std::uint32_t, py::array::c_style>;

// Whether every number is below `end`.
bool below(const Numbers& numbers, std::uint64_t end) {
  return std::all_of(numbers.data(), numbers.data() + numbers.size(), [&](std::uint32_t one) { return one < end; });
}

// A read of `bytes` bytes from byte `first` on of each of these rows, which lie `stride` bytes apart, to byte `at` of `local` on.
BlockBatch row_batch(const Peer& peer, const ConnBuffer& local, std::uint64_t at, const RemoteBuffer& remote, const Numbers& rows,
                     std::uint64_t stride, std::uint64_t first, std::size_t bytes) {
  const auto count = static_cast<std::size_t>(rows.size());
  std::vector<std::uint64_t> here(count), there(count);
  for (std::size_t i = 0; i < count; ++i) {
    here[i] = at + i * bytes;
    there[i] = rows.data()[i] * stride + first;
  }
  const BlockPair pair{local, remote, here, there};
  const ReleasedGil nogil;
  return check(peer.prepare_blocks({&pair, 1}, bytes));
}

}  // namespace

void bind_pages(py::module_& module) {
  module.def("block_numbers", block_numbers, py::arg("blocks"), py::arg("most"), py::arg("end"));
  module.def("below", below, py::arg("numbers"), py::arg("end"));
  module.def("row_batch", row_batch, py::arg("peer"), py::arg("local"), py::arg("at"), py::arg("remote"), py::arg("rows"),
             py::arg("stride"), py::arg("first"), py::arg("nbytes"));
  py::class_<PageMove>(module, "PageMove",
                       "The pages of some tokens, between a cache of this process and one of a peer. `source`, `target`: (Layout, "
                       "blocks, first token within them) each. `near`: this process's buffers, `far`: the peer's, as many as their "
                       "layouts have. `reading`: from the peer's cache to this process's. One thread at a time.")
      .def(py::init<Peer, const py::tuple&, const py::tuple&, std::uint64_t, const py::sequence&, const py::sequence&, bool>(),
           py::arg("peer"), py::arg("source"), py::arg("target"), py::arg("tokens"), py::arg("near"), py::arg("far"), py::kw_only(),
           py::arg("reading"))
      .def_property_readonly("layer_bytes", &PageMove::layer_bytes, "Of one layer of `tokens` tokens in this process's cache.")
      .def("post", &PageMove::post, py::arg("works"), py::arg("layers"), py::arg("shortest") = 0,
           "Begins to move layers, (first, count) of the whole model, and appends the Works to `works`; also before it raises. "
           "Returns how many bytes they move. None: nothing was begun, as elements or scales differ, or as runs have fewer than "
           "`shortest` bytes on average.");
}

}  // namespace hmc::bindings
