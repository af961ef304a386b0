// prepare_blocks([(buf, src_offsets, remote, dst_offsets), ...], block): Python's pairs as the core's.
#pragma once

#include "common.h"

namespace hmc::bindings {

// Calls `prepare(pairs, block)` without the GIL.
template <class Prepare>
BlockBatch prepare_from(const py::iterable& pairs, std::size_t block, Prepare prepare) {
  std::vector<Offsets> offsets;  // until the core has copied them
  std::vector<BlockPair> all;
  std::vector<py::tuple> tuples;
  constexpr const char* wanted = "each pair is (ConnBuffer, local offsets, RemoteBuffer, remote offsets)";
  for (const py::handle item : pairs) {
    if (PySequence_Check(item.ptr()) == 0) throw py::type_error(wanted);
    tuples.push_back(py::cast<py::tuple>(item));
  }
  offsets.reserve(2 * tuples.size());
  for (const py::tuple& pair : tuples) {
    if (pair.size() != 4) refuse(wanted);
    if (!py::isinstance<ConnBuffer>(pair[0]) || !py::isinstance<RemoteBuffer>(pair[2])) throw py::type_error(wanted);
    offsets.push_back(offsets_of(pair[1], "local offsets"));
    const std::span<const std::uint64_t> local = offsets.back().values;
    offsets.push_back(offsets_of(pair[3], "remote offsets"));
    all.push_back({pair[0].cast<ConnBuffer>(), pair[2].cast<RemoteBuffer>(), local, offsets.back().values});
  }
  const ReleasedGil nogil;
  return check(prepare(std::span<const BlockPair>(all), block));
}

inline py::list notifications_as_list(const std::vector<Notification>& all) {
  py::list result;
  for (const auto& one : all) {
    result.append(py::make_tuple(one.source, py::bytes(reinterpret_cast<const char*>(one.payload.data()), one.payload.size())));
  }
  return result;
}

inline py::list bytes_list(const std::vector<std::vector<std::byte>>& all) {
  py::list result;
  for (const auto& one : all) result.append(py::bytes(reinterpret_cast<const char*>(one.data()), one.size()));
  return result;
}

inline PutOptions put_options(const py::object& notify, const std::string& complete, std::string& payload) {
  PutOptions options;
  options.notify = notify_of(notify, payload);
  if (complete != "remote" && complete != "local") refuse("complete must be \"remote\" or \"local\", not \"" + complete + "\"");
  options.complete = complete == "local" ? Complete::local : Complete::remote;
  return options;
}

}  // namespace hmc::bindings
