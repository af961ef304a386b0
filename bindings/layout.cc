// Layouts of KV caches for hmc.layout, which gives these functions their Python form.
#include <pybind11/numpy.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "arguments.h"
#include "common.h"
#include "element_type.h"
#include "hmc/layout.h"
#include "hmc/weighted_sum.h"

namespace hmc::bindings {
namespace {

using Buffers = std::vector<MemoryView>;
using Blocks = std::vector<std::uint64_t>;
using Extent = std::pair<std::uint64_t, std::uint64_t>;
using Layers = Argument<Extent, "layers">;
using Heads = Argument<Extent, "heads">;

// The arrays of a cache: one, or a sequence of them.
Buffers buffers_of(const py::sequence& arrays, bool writable) {
  Buffers views;
  for (const py::object array : arrays) views.push_back(view_of(array, writable));  // the sequence may keep none of them
  return views;
}

std::vector<std::span<const std::byte>> readable(const Buffers& buffers) {
  std::vector<std::span<const std::byte>> spans;
  for (const MemoryView& view : buffers) spans.emplace_back(static_cast<const std::byte*>(view.data), view.bytes);
  return spans;
}
std::vector<std::span<std::byte>> writable(const Buffers& buffers) {
  std::vector<std::span<std::byte>> spans;
  for (const MemoryView& view : buffers) spans.emplace_back(static_cast<std::byte*>(view.data), view.bytes);
  return spans;
}

// Of all arrays, where it is one and not the CPU: memory of a peer is of the device that it was mapped for.
std::optional<Device> common_device(const Buffers& from, const Buffers& to) {
  const auto is_same = [&](const MemoryView& view) { return view.device == to.front().device; };
  if (to.empty() || to.front().device.is_cpu() || !std::ranges::all_of(from, is_same) || !std::ranges::all_of(to, is_same))
    return {};
  return to.front().device;
}

LayoutRange range_of(const Extent& extent) { return {extent.first, extent.second}; }
py::tuple tuple_of(LayoutRange range) { return py::make_tuple(range.first, range.count); }

template <ArgumentName name>
using Count = Argument<std::uint64_t, name>;

Layout make_layout(const Text<"text">& text, const Count<"L">& layers, const Count<"B">& blocks, const Count<"N">& tokens,
                   const Count<"H">& heads, const Count<"D">& dims, const Count<"first_layer">& first_layer,
                   const Count<"first_head">& first_head, const py::object& dtype,
                   const Argument<std::vector<float>, "scales">& scales) {
  LayoutGiven given;
  given.extents = {layers, blocks, tokens, heads, 0, dims};
  given.first_layer = first_layer;
  given.first_head = first_head;
  given.scales = scales;
  if (!dtype.is_none()) given.type = element_type_of(py::none(), dtype);
  return check(Layout::parse(*text, given));
}

void weighted_rows(const py::object& out, const py::object& rows, const py::array_t<float, py::array::c_style>& weights,
                   const py::object& dtype, const std::optional<py::array_t<bool, py::array::c_style>>& used) {
  if (weights.ndim() != 2) refuse("weights need two axes: results and terms");
  const Buffers to{view_of(out, true)}, from{view_of(rows, false)};
  const auto terms = static_cast<std::size_t>(weights.shape(1));
  const std::span<const float> factors(weights.data(), static_cast<std::size_t>(weights.size()));
  std::span<const std::uint8_t> marks;
  if (used) marks = {reinterpret_cast<const std::uint8_t*>(used->data()), static_cast<std::size_t>(used->size())};
  if (used && marks.size() != factors.size()) refuse("used needs the shape of weights");
  const DataType type = element_type_of(py::none(), dtype);
  Status done;
  {
    const ReleasedGil nogil;
    done = weighted_sum(writable(to)[0], readable(from)[0], factors, terms, type, marks);
  }
  check(done);
}

bool prepare_sums(const py::object& device, const py::object& dtype) {
  const Device where = device_of(device);
  const DataType type = element_type_of(py::none(), dtype);
  const ReleasedGil nogil;
  return check(prepare_weighted_sum(where, type));
}

py::list runs(const Argument<Layout, "source">& source, const py::object& source_blocks, std::uint64_t source_first,
              const Argument<Layout, "target">& target, const py::object& target_blocks, std::uint64_t target_first,
              std::uint64_t tokens, const Layers& layers, const Heads& heads) {
  const Blocks from = copied_offsets_of(source_blocks, "source blocks"), to = copied_offsets_of(target_blocks, "target blocks");
  const LayoutMove move{*source, {from, source_first}, *target, {to, target_first}, tokens, 0, range_of(layers), range_of(heads)};
  std::vector<LayoutRuns> found;
  {
    const ReleasedGil nogil;
    found = check(layout_runs(move));
  }
  py::list all;
  for (const LayoutRuns& one : found) {
    const auto array = [](const std::vector<std::uint64_t>& offsets) {
      return py::array_t<std::uint64_t>(static_cast<py::ssize_t>(offsets.size()), offsets.data());
    };
    all.append(
        py::make_tuple(one.bytes, one.source_buffer, array(one.source_offsets), one.target_buffer, array(one.target_offsets)));
  }
  return all;
}

LayoutDigest digest_of(const py::object& wanted) {
  if (wanted.is_none()) return LayoutDigest::none;
  const std::string name = py::isinstance<py::str>(wanted) ? wanted.cast<std::string>() : "";
  if (name == "source") return LayoutDigest::source;
  if (name == "target") return LayoutDigest::target;
  return check(Result<LayoutDigest>(
      Status(Code::invalid_argument, "digest=" + std::string(py::repr(wanted)) + "; pass \"source\", \"target\" or None")));
}

std::uint64_t convert(const Argument<Layout, "source">& source, const py::sequence& source_arrays, const py::object& source_blocks,
                      std::uint64_t source_first, const Argument<Layout, "target">& target, const py::sequence& target_arrays,
                      const py::object& target_blocks, std::uint64_t target_first, std::uint64_t tokens, std::uint64_t position,
                      const Layers& layers, const Heads& heads, const py::object& digest) {
  const Buffers from = buffers_of(source_arrays, false), to = buffers_of(target_arrays, true);
  const Blocks from_blocks = copied_offsets_of(source_blocks, "source blocks");
  const Blocks to_blocks = copied_offsets_of(target_blocks, "target blocks");
  const LayoutMove move{
      *source,        {from_blocks, source_first}, *target, {to_blocks, target_first}, tokens, position, range_of(layers),
      range_of(heads)};
  const auto read = readable(from);
  const auto written = writable(to);
  const LayoutDigest wanted = digest_of(digest);
  const ReleasedGil nogil;
  return check(layout_convert(move, read, written, {wanted, common_device(from, to)}));
}

LayoutSelection selection_of(const Layout& layout, const Blocks& blocks, std::uint64_t first, std::uint64_t tokens,
                             std::uint64_t position, const Layers& layers, const Heads& heads) {
  return {layout, {blocks, first}, tokens, position, range_of(layers), range_of(heads)};
}

std::uint64_t digest(const Argument<Layout, "layout">& layout, const py::sequence& arrays, const py::object& blocks,
                     std::uint64_t first, std::uint64_t tokens, std::uint64_t position, const Layers& layers, const Heads& heads) {
  const Buffers buffers = buffers_of(arrays, false);
  const Blocks list = copied_offsets_of(blocks, "blocks");
  const auto read = readable(buffers);
  const ReleasedGil nogil;
  return check(layout_digest(selection_of(*layout, list, first, tokens, position, layers, heads), read));
}

py::array_t<std::uint64_t> digests(const Argument<Layout, "layout">& layout, const py::sequence& arrays, const py::object& blocks,
                                   std::uint64_t first, std::uint64_t tokens, std::uint64_t position, const Layers& layers,
                                   const Heads& heads) {
  const Buffers buffers = buffers_of(arrays, false);
  const Blocks list = copied_offsets_of(blocks, "blocks");
  const auto read = readable(buffers);
  std::vector<std::uint64_t> table;
  {
    const ReleasedGil nogil;
    table = check(layout_digests(selection_of(*layout, list, first, tokens, position, layers, heads), read));
  }
  return py::array_t<std::uint64_t>(static_cast<py::ssize_t>(table.size()), table.data());
}

std::vector<float> scales_of(const Layout& layout) {
  std::vector<float> scales;
  for (std::uint64_t layer = 0; layer < layout.extent(LayoutAxis::layer); ++layer) {
    for (std::uint64_t kv = 0; kv < 2; ++kv) scales.push_back(layout.scale(layer, kv));
  }
  return scales;
}

}  // namespace

void bind_layout(py::module_& module) {
  py::class_<Layout>(
      module, "Layout",
      "Where the elements of a paged KV cache lie: named axes from the outermost to the innermost, as in \"L=32 B=1024 "
      "H=8 N=16 (kv D=128) bf16\". Arguments give what the text leaves out: extents, first layer and head, element type, "
      "scales. InvalidArgumentError names the part of the text that is unknown, missing or ambiguous. Immutable.")
      .def(py::init(&make_layout), py::arg("text"), py::kw_only(), py::arg("L") = 0, py::arg("B") = 0, py::arg("N") = 0,
           py::arg("H") = 0, py::arg("D") = 0, py::arg("first_layer") = 0, py::arg("first_head") = 0, py::arg("dtype") = py::none(),
           py::arg("scales") = std::vector<float>())
      .def("__str__", &Layout::str)
      .def("__repr__", [](const Layout& self) { return "<hmc.layout.Layout \"" + self.str() + "\">"; })
      .def("__eq__", [](const Layout& self,
                        const py::object& other) { return py::isinstance<Layout>(other) && self == other.cast<Layout>(); })
      .def("__hash__", [](const Layout& self) { return py::hash(py::str(self.str())); })
      .def(
          "packed",
          [](const Layout& self, const Layers& layers, const Heads& heads, const Count<"blocks">& blocks) {
            return check(self.packed(range_of(layers), range_of(heads), blocks));
          },
          py::arg("layers"), py::arg("heads"), py::arg("blocks"),
          "The same order of axes, compact and in one buffer, for these (first, count) of layers and heads, and blocks.")
      .def_property_readonly(
          "layers", [](const Layout& self) { return tuple_of(self.layers()); }, "(first, count) in the whole model.")
      .def_property_readonly(
          "heads", [](const Layout& self) { return tuple_of(self.heads()); }, "(first, count) in the whole model.")
      .def_property_readonly(
          "blocks", [](const Layout& self) { return self.extent(LayoutAxis::block); }, "Number of blocks.")
      .def_property_readonly(
          "block", [](const Layout& self) { return self.extent(LayoutAxis::token); }, "Tokens of a block.")
      .def_property_readonly(
          "dims", [](const Layout& self) { return self.extent(LayoutAxis::dim); }, "Dimensions of a head.")
      .def_property_readonly(
          "kv", [](const Layout& self) { return self.extent(LayoutAxis::kv); }, "2, or 1 without a kv axis.")
      .def_property_readonly(
          "dtype", [](const Layout& self) { return std::string(name_of(self.type())); }, "As \"bf16\".")
      .def_property_readonly("scales", scales_of, "A pair for each layer, of K and V.")
      .def_property_readonly("buffers", &Layout::buffers, "Number of buffers.")
      .def_property_readonly("buffer_bytes", &Layout::buffer_bytes, "Bytes that each buffer has at least.");
  module.def(
      "weighted_sum", weighted_rows, py::arg("out"), py::arg("rows"), py::arg("weights"), py::arg("dtype"),
      py::arg("used") = py::none(),
      "Row t of `out` becomes the sum over k of weights[t, k] * row (t, k) of `rows`, in f32 and in the order of k, rounded to "
      "nearest even. `out`, `rows`: arrays whose bytes are elements of `dtype`, a floating type of at most 32 bits, both in CPU "
      "memory or both on one device, which then computes: behind no stream, and returns when the sums are in place. `weights`: "
      "float32, of shape (results, terms). `used`: bools of that shape; False leaves a term out, and its row is not read. "
      "Releases the GIL. InvalidArgumentError: sizes that do not fit. UnsupportedError: the device has no kernel, or not yet.");
  module.def("prepare_weighted_sum", prepare_sums, py::arg("device"), py::arg("dtype"),
             "Loads the kernel of weighted_sum() in a device's memory. False: not yet, as it is being compiled or a held stream "
             "keeps the device waiting. Releases the GIL. UnsupportedError: there is none.");
  module.def("layout_runs", runs, py::arg("source"), py::arg("source_blocks"), py::arg("source_first"), py::arg("target"),
             py::arg("target_blocks"), py::arg("target_first"), py::arg("tokens"), py::arg("layers"), py::arg("heads"));
  module.def("layout_convert", convert, py::arg("source"), py::arg("source_arrays"), py::arg("source_blocks"),
             py::arg("source_first"), py::arg("target"), py::arg("target_arrays"), py::arg("target_blocks"),
             py::arg("target_first"), py::arg("tokens"), py::arg("position"), py::arg("layers"), py::arg("heads"),
             py::arg("digest"));
  module.def("layout_digest", digest, py::arg("layout"), py::arg("arrays"), py::arg("blocks"), py::arg("first"), py::arg("tokens"),
             py::arg("position"), py::arg("layers"), py::arg("heads"));
  module.def("layout_digests", digests, py::arg("layout"), py::arg("arrays"), py::arg("blocks"), py::arg("first"),
             py::arg("tokens"), py::arg("position"), py::arg("layers"), py::arg("heads"));
}

}  // namespace hmc::bindings
