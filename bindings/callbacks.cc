#include "callbacks.h"

#include <unordered_map>

namespace hmc::bindings {
namespace {

// By owner; changed and read with the GIL alone.
std::unordered_map<PyObject*, Callbacks>& shown() {
  static auto* const table = new std::unordered_map<PyObject*, Callbacks>;
  return *table;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (in_forked_child()) return 0;  // a thread that is only in the parent may hold a callback's lock
  const auto found = shown().find(self);
  if (found == shown().end()) return 0;
  for (const auto& callback : found->second) Py_VISIT(object_of(callback->get()));
  return 0;
}

int clear(PyObject* self) {
  if (in_forked_child()) return 0;  // as in traverse()
  const auto found = shown().find(self);
  if (found == shown().end()) return 0;
  const Callbacks callbacks = std::move(found->second);
  shown().erase(found);
  for (const auto& callback : callbacks) callback->clear();
  return 0;
}

void dealloc(PyObject* self) {
  shown().erase(self);
  py::detail::pybind11_object_dealloc(self);
}

}  // namespace

void show_callbacks(py::handle owner, Callbacks callbacks) {
  if (!callbacks.empty()) shown()[owner.ptr()] = std::move(callbacks);
}

py::custom_type_setup collectable_callbacks() {
  return py::custom_type_setup([](PyHeapTypeObject* heap) {
    PyTypeObject& type = heap->ht_type;
    type.tp_flags |= Py_TPFLAGS_HAVE_GC;
    type.tp_traverse = traverse;
    type.tp_clear = clear;
    type.tp_dealloc = dealloc;
  });
}

}  // namespace hmc::bindings
