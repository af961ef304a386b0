// Arithmetic and steps of hmc.experts, which gives them their Python form.
#include <pybind11/numpy.h>

#include <cmath>
#include <cstring>
#include <string>

#include "expert_call.h"

namespace hmc::bindings {
namespace {

using Integers = py::array_t<std::int64_t>;

template <class T>
py::array array_of(const std::vector<T>& values, std::vector<py::ssize_t> shape) {
  py::array_t<T> array(std::move(shape));
  if (!values.empty()) std::memcpy(array.mutable_data(), values.data(), values.size() * sizeof(T));
  return array;
}

Integers integers(const std::vector<std::int64_t>& values) { return array_of(values, {static_cast<py::ssize_t>(values.size())}); }

py::array bools(const std::vector<std::uint8_t>& marks, std::size_t rows, std::size_t columns) {
  py::array_t<bool> array({static_cast<py::ssize_t>(rows), static_cast<py::ssize_t>(columns)});
  if (!marks.empty()) std::memcpy(array.mutable_data(), marks.data(), marks.size());
  return array;
}

ExpertLayout layout_of(std::int64_t ranks, std::int64_t rank, std::int64_t experts, std::int64_t tokens, std::int64_t topk,
                       bool once) {
  if (rank < 0 || rank >= ranks || experts < 1 || tokens < 0 || topk < 1)
    refuse("a layout of experts needs ranks, experts and topk");
  return {ranks, rank, experts, tokens, topk, once};
}

// The numbers of experts, which may be of any type of integers.
template <class T>
std::vector<std::int64_t> experts_from(const py::array& ids, std::int64_t experts) {
  const auto* const from = static_cast<const T*>(ids.data());
  std::vector<std::int64_t> found(static_cast<std::size_t>(ids.size()));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const T id = from[i];
    if (std::cmp_less(id, -1) || std::cmp_greater_equal(id, experts)) {
      const std::size_t columns = static_cast<std::size_t>(ids.shape(1));
      refuse("topk_ids[" + std::to_string(i / columns) + ", " + std::to_string(i % columns) + "] is " + std::to_string(id) +
             "; experts are 0 to " + std::to_string(experts - 1) + ", and -1 is for none");
    }
    found[i] = static_cast<std::int64_t>(id);
  }
  return found;
}

std::vector<std::int64_t> experts_of(const py::array& ids, std::int64_t experts) {
  const bool is_signed = ids.dtype().kind() == 'i';
  switch (ids.itemsize()) {
    case 1:
      return is_signed ? experts_from<std::int8_t>(ids, experts) : experts_from<std::uint8_t>(ids, experts);
    case 2:
      return is_signed ? experts_from<std::int16_t>(ids, experts) : experts_from<std::uint16_t>(ids, experts);
    case 4:
      return is_signed ? experts_from<std::int32_t>(ids, experts) : experts_from<std::uint32_t>(ids, experts);
    default:
      return is_signed ? experts_from<std::int64_t>(ids, experts) : experts_from<std::uint64_t>(ids, experts);
  }
}

std::string shown_shape(const py::array& array) { return written(array.attr("shape")); }

// Both arrays are copied.
std::shared_ptr<ExpertRoutes> routes_of(const ExpertLayout& layout, const py::array& ids,
                                        const py::array_t<float, py::array::c_style | py::array::forcecast>& weights) {
  const char kind = ids.dtype().kind();
  if ((ids.flags() & py::array::c_style) == 0) refuse("topk_ids: pass an array in C order");
  if (ids.ndim() != 2 || (kind != 'i' && kind != 'u')) {
    refuse("topk_ids: " + written(ids.dtype()) + " of shape " + shown_shape(ids) + "; pass integers of shape (tokens, top k)");
  }
  if (ids.shape(0) > layout.tokens || ids.shape(1) > layout.topk) {
    refuse("topk_ids: shape " + shown_shape(ids) + "; this Buffer was made for at most " + std::to_string(layout.tokens) +
           " tokens and top " + std::to_string(layout.topk));
  }
  ExpertChoice choice{static_cast<std::size_t>(ids.shape(0)), static_cast<std::size_t>(ids.shape(1)), {}, {}};
  choice.ids = experts_of(ids, layout.experts);
  if (weights.ndim() != 2 || weights.shape(0) != ids.shape(0) || weights.shape(1) != ids.shape(1)) {
    refuse("topk_weights: shape " + shown_shape(weights) + "; topk_ids has " + shown_shape(ids));
  }
  choice.weights.assign(weights.data(), weights.data() + weights.size());
  return std::make_shared<ExpertRoutes>(check(ExpertRoutes::of(layout, std::move(choice))));
}

std::vector<std::uint8_t> marks_of(const ExpertLayout& layout, const std::vector<std::int64_t>& ranks) {
  std::vector<std::uint8_t> marks(static_cast<std::size_t>(layout.ranks), 0);
  for (const std::int64_t rank : ranks) marks.at(static_cast<std::size_t>(rank)) = 1;
  return marks;
}

py::array sources_of(const ExpertReceived& received) {
  Integers found({static_cast<py::ssize_t>(received.rows()), py::ssize_t{2}});
  auto at = found.mutable_unchecked<2>();
  for (std::int64_t rank = 0; rank < received.layout().ranks; ++rank) {
    const std::vector<std::int64_t> rows = received.rows_of(rank);
    for (std::size_t pair = 0; pair < rows.size(); ++pair) {
      at(rows[pair], 0) = rank;
      at(rows[pair], 1) = received.tokens_of(rank)[pair];
    }
  }
  return found;
}

// (experts, weights) of (rows, top k).
std::pair<py::array, py::array> facts_of(const ExpertReceived& received) {
  const ExpertLayout& layout = received.layout();
  const std::vector<std::int64_t> facts = received.facts();
  std::vector<std::int64_t> experts(facts.size());
  std::vector<float> weights(facts.size());
  for (std::size_t i = 0; i < facts.size(); ++i) {
    experts[i] = fact_expert(facts[i], layout.local_experts());
    weights[i] = experts[i] < 0 ? 0.0F : fact_weight(facts[i]);
  }
  const std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(received.rows()), static_cast<py::ssize_t>(layout.facts())};
  return {array_of(experts, shape), array_of(weights, shape)};
}

void bind_layout_and_routes(py::module_& module) {
  py::class_<ExpertLayout>(module, "ExpertLayout", "What the ranks of an hmc.experts.Buffer agree on. Immutable.")
      .def(py::init(&layout_of), py::arg("ranks"), py::arg("rank"), py::arg("experts"), py::arg("tokens"), py::arg("topk"),
           py::arg("once"))
      .def_property_readonly("words", &ExpertLayout::total_words, "64-bit words of a window, and of an outbox.")
      .def(
          "place",
          [](const ExpertLayout& self, int step, std::int64_t number, std::int64_t rank) {
            return self.place(static_cast<ExpertStep>(step), number, rank);
          },
          py::arg("step"), py::arg("number"), py::arg("rank"),
          "First word of the header of dispatch (step 0) or combine (1): of a sender in the window, of a receiver in the outbox.")
      .def_static(
          "notification",
          [](int step, std::int64_t number) { return ExpertLayout::notification(static_cast<ExpertStep>(step), number); },
          py::arg("step"), py::arg("number"), "What the put of a header raises.");
  py::class_<ExpertRoutes, std::shared_ptr<ExpertRoutes>>(module, "ExpertRoutes",
                                                          "Where the tokens of one dispatch go. Copies its arrays. Immutable.")
      .def(py::init(&routes_of), py::arg("layout"), py::arg("ids"), py::arg("weights"))
      .def_property_readonly(
          "tokens", [](const ExpertRoutes& self) { return self.choice().tokens; }, "Number of tokens.")
      .def_property_readonly("width", &ExpertRoutes::width, "Largest number of results of a token.")
      .def(
          "pairs_to", [](const ExpertRoutes& self, std::int64_t rank) { return self.pairs_to(rank).size(); }, py::arg("rank"),
          "Number of rows that a rank is sent.")
      .def(
          "factors",
          [](const ExpertRoutes& self) {
            return array_of(self.factors(),
                            {static_cast<py::ssize_t>(self.choice().tokens), static_cast<py::ssize_t>(self.width())});
          },
          "By token and result: its weight in the sum.")
      .def(
          "used",
          [](const ExpertRoutes& self, const std::vector<std::int64_t>& missing) -> py::object {
            const std::vector<std::uint8_t> marks = self.used(marks_of(self.layout(), missing));
            if (marks.empty()) return py::none();
            return bools(marks, self.choice().tokens, self.width());
          },
          py::arg("missing"), "By token and result: whether it is there, without those of missing ranks. None: all are.")
      .def(
          "lost",
          [](const ExpertRoutes& self, const std::vector<std::int64_t>& missing) {
            return bools(self.lost(marks_of(self.layout(), missing)), self.choice().tokens, self.choice().columns);
          },
          py::arg("missing"), "By token and choice: whether the expert is of a missing rank.");
}

void bind_received(py::module_& module) {
  py::class_<ExpertReceived, std::shared_ptr<ExpertReceived>>(module, "ExpertReceived", "Which rows a rank has of one dispatch.")
      .def(py::init<const ExpertLayout&>(), py::arg("layout"))
      .def("arrange", &ExpertReceived::arrange, "Finds the place of every row, once the headers were read.")
      .def("lose", &ExpertReceived::lose, py::arg("rank"), "The rows of a rank are not there: they have no experts.")
      .def_property_readonly("rows", &ExpertReceived::rows, "Number of rows.")
      .def(
          "counts", [](const ExpertReceived& self) { return integers(self.counts()); },
          "Rows by local expert, or one number where rows are sent to ranks.")
      .def(
          "rows_of", [](const ExpertReceived& self, std::int64_t rank) { return integers(self.rows_of(rank)); }, py::arg("rank"),
          "Row of each pair of a source, in the order of sending.")
      .def("sources", sources_of, "By row: (rank, token) that it came from.")
      .def("facts", facts_of, "By row and choice: (local experts, weights), -1 for none.");
}

template <class Class>
void bind_steps(Class& cls) {
  cls.def("write", &ExpertCall::write, py::arg("ranks"), "Writes the headers for ranks into the outbox.")
      .def("send", &ExpertCall::send, py::arg("comm"), py::arg("outbox"), py::arg("windows"), py::arg("ranks"),
           "Puts the headers into the windows of ranks.")
      .def("sent", &ExpertCall::sent, py::arg("ranks"), "Those of the ranks to which a header went.")
      .def("take", &ExpertCall::take, py::arg("comm"), py::arg("ranks"), py::arg("timeout"),
           "Waits for the notifications of headers.")
      .def("read", &ExpertCall::read, py::arg("ranks"),
           "Copies and checks headers. ClosedError: the rank has closed its Buffer. PeerLostError: it has masked this one.")
      .def("came", &ExpertCall::came, py::arg("ranks"), "Those of the ranks whose headers were read.")
      .def("wait", &ExpertCall::wait, py::arg("ranks"), py::arg("timeout"),
           "Waits for transfers from ranks. Where this rank is among them, also for the copies that its device makes.")
      .def("works", &ExpertCall::works, py::arg("rank"), "The transfers from a rank.")
      .def("acknowledge", &ExpertCall::acknowledge, py::arg("comm"), py::arg("ranks"), py::arg("notification"),
           "Notifies ranks. Does not wait, and ignores errors.")
      .def("check_not_masked", &ExpertCall::check_not_masked, py::arg("ranks"), "PeerLostError: a rank has masked this one.");
}

}  // namespace

void bind_experts(py::module_& module) {
  bind_layout_and_routes(module);
  bind_received(module);
  py::class_<ExpertCall> call(module, "ExpertCall",
                              "The steps of a call, each of which is done once with a rank, whatever interrupts. They return "
                              "what failed as (rank, exception). One thread at a time.");
  bind_steps(call);
  py::class_<ExpertDispatch, ExpertCall>(module, "ExpertDispatch", "The steps of a dispatch.")
      .def(py::init<std::shared_ptr<const ExpertRoutes>, std::shared_ptr<ExpertReceived>, std::int64_t, py::object, py::object>(),
           py::arg("routes"), py::arg("received"), py::arg("number"), py::arg("outbox"), py::arg("window"))
      .def("load", &ExpertDispatch::load, py::arg("device"), py::arg("parts"), py::arg("sources"), py::arg("ranks"),
           "Starts to copy the rows of ranks whose memory the device can load from; a wait() for this rank waits for them. Returns "
           "the others, whose rows get() takes.")
      .def("get", &ExpertDispatch::get, py::arg("comm"), py::arg("parts"), py::arg("sources"), py::arg("mapped"), py::arg("ranks"),
           "Starts to get the rows of ranks. parts: (ConnBuffer, bytes of a row, offset of the first at the source).")
      .def(
          "copies",
          [](const ExpertDispatch& self) {
            const auto [from, to] = self.copies();
            return std::pair(integers(from), integers(to));
          },
          "(rows to copy, rows to write): of tokens that were transferred once for several rows.");
  py::class_<ExpertCombine, ExpertCall>(module, "ExpertCombine", "The steps of a combine.")
      .def(py::init<std::shared_ptr<const ExpertRoutes>, std::shared_ptr<const ExpertReceived>, std::int64_t, py::object,
                    py::object>(),
           py::arg("routes"), py::arg("received"), py::arg("number"), py::arg("outbox"), py::arg("window"))
      .def("offer", &ExpertCombine::offer, py::arg("descriptor"),
           "Before write(): the buffer with this rank's results. Without it the rank has none.")
      .def("descriptor", &ExpertCombine::descriptor, py::arg("rank"), "Of the buffer with the results of a rank; empty: none.")
      .def("load", &ExpertCombine::load, py::arg("device"), py::arg("row_bytes"), py::arg("sources"),
           "Leaves the results of (rank, its buffer) where they are if the device can load them. The ranks of the others.")
      .def("get", &ExpertCombine::get, py::arg("comm"), py::arg("into"), py::arg("row_bytes"), py::arg("sources"),
           "Starts to get the results of (rank, its buffer).")
      .def("add_up", &ExpertCombine::add_up, py::arg("out"), py::arg("dtype"), py::arg("missing"),
           "The weighted sum of what load() and get() found, without the results of missing ranks, by the device of `out`, which "
           "is that of load(). Returns how many it has. Releases the GIL.");
}

}  // namespace hmc::bindings
