// What is recorded or queried other than ops: memory that is handed over, what the program holds, module calls.
#pragma once

#include "threads.h"

namespace determinism {
namespace {

// Records that a tensor's memory is handed to the program, which may write it from now on. False, with nothing recorded, if Python
// must do so: for tensors that are not ordinary, and in threads that work for another.
bool escape(Recorder& recorder, PyObject* object, PyObject* name) {
  constexpr int8_t READ = 0, ESCAPE = 1;
  if (!recorder.is_active || recorder.is_busy || recorder.is_waiting || recorder.asks_python || recorder.stream == nullptr) return false;
  if (recorder.graph_depth != 0 || !THPVariable_CheckExact(object)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (!is_simple(tensor)) return false;
  const int32_t op = recorder.stream->op_number(name);
  Looked<1> looked;
  const DispatchGuard plain;
  recorder.look_at(looked, tensor, READ);
  looked.digest(*recorder.stream);
  Pending none;
  recorder.append(ESCAPE, op, -1, looked, c10::SmallVector<Output, 1>(), none, {});
  recorder.stream->state(tensor).externally_writable = true;
  return true;
}

// Records what the program holds, as `RecordMaker.hold` does; `generators` are digests of the states of generators. -1, with nothing recorded,
// if Python must do so: for tensors that are not ordinary, and in threads that work for another.
int64_t hold(Recorder& recorder, const py::list& tensors, int32_t op, int32_t arguments, const py::sequence& generators) {
  constexpr int8_t READ = 0, STATE = 4;
  if (own_recorder() != &recorder || !recorder.is_active || recorder.is_waiting || recorder.asks_python || recorder.stream == nullptr) return -1;
  for (const py::handle tensor : tensors)
    if (!is_simple(unpacked(tensor))) return -1;
  c10::SmallVector<Digest, 4> states;
  for (const py::handle state : generators) states.push_back(from_bytes(state));
  Looked<64> looked;
  const DispatchGuard plain;
  for (const py::handle tensor : tensors) recorder.look_at(looked, unpacked(tensor), READ);
  looked.digest(*recorder.stream);
  return recorder.append_outside(STATE, op, arguments, looked, states);
}

// Digests ordinary CPU tensors; None if any tensor is of another kind.
py::object digest_each(const py::sequence& tensors) {
  constexpr size_t LONG = 1 << 20;  // From this many bytes on, the GIL is released meanwhile.
  py::list found(tensors.size());
  for (size_t at = 0; at < tensors.size(); ++at) {
    const py::object tensor = tensors[at];
    if (!THPVariable_CheckExact(tensor.ptr())) return py::none();
    const at::Tensor& value = THPVariable_Unpack(tensor.ptr());
    if (!is_simple(value) || is_on_device(value)) return py::none();
    std::optional<py::gil_scoped_release> released;
    if (value.nbytes() >= LONG) released.emplace();
    const Digest digest = digest_tensor(value);
    released.reset();
    found[at] = as_bytes(digest);
  }
  return std::move(found);
}

// Records that a module was given tensors and returned others, each known only by its digest. False, with nothing recorded, if Python
// must do so: for tensors that are not ordinary, and in threads that work for another.
bool module_returned(Recorder& recorder, int32_t op, const py::sequence& given, const py::sequence& made) {
  constexpr int8_t READ = 0, MODULE = 6;
  if (own_recorder() != &recorder) return false;
  if (!recorder.is_active || recorder.is_busy || recorder.is_waiting || recorder.asks_python || recorder.stream == nullptr) return false;
  Stream& stream = *recorder.stream;
  const DispatchGuard plain;
  Looked<4> looked, returned;
  for (const auto& [some, tensors] : {std::pair(&looked, &given), std::pair(&returned, &made)})
    for (const py::handle object : *tensors) {
      if (!THPVariable_CheckExact(object.ptr()) || !is_simple(THPVariable_Unpack(object.ptr()))) return false;
      const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
      const size_t at = some->digests.size();
      some->read.push_back({at, tensor});
      some->edges.push_back({EXTERNAL, 0, READ, stream.layout_without_storage(tensor)});
      some->digests.push_back({static_cast<int32_t>(at), {}});
    }
  looked.digest(stream);
  returned.digest(stream);
  c10::SmallVector<Output, 4> outputs;
  for (size_t at = 0; at < returned.digests.size(); ++at) outputs.push_back({returned.edges[at].layout, returned.digests[at].digest});
  recorder.append(MODULE, op, -1, looked, outputs, returned.pending, {});
  return true;
}

// These use the plain C API of Python: noting a module call takes less time than pybind11's overhead for a function call.
template <class Function>
PyObject* called(Function function) {
  try {
    return PyBool_FromLong(function());
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// Notes that a module is called; False, with nothing noted, if Python must do so.
PyObject* enter_module(PyObject*, PyObject* module) {
  return called([&] {
    Recorder* recorder = own_recorder();
    if (recorder == nullptr || !recorder->is_active || recorder->is_waiting || recorder->must_look_for_update()) return false;
    recorder->enter(module);
    return true;
  });
}

// Notes that a module returned or raised; does nothing if recording ended meanwhile.
PyObject* leave_module(PyObject*, PyObject* module) {
  return called([&] {
    Recorder* recorder = own_recorder();
    if (recorder == nullptr || recorder->stream == nullptr) return false;
    recorder->leave(module);
    return true;
  });
}

// Notes that the memory of a tensor is handed over, in a record with a name; False, with nothing recorded, if Python must do so.
PyObject* hand_over(PyObject*, PyObject* const* given, Py_ssize_t count) {
  return called([&] {
    Recorder* recorder = own_recorder();
    return count == 2 && recorder != nullptr && escape(*recorder, given[0], given[1]);
  });
}

PyMethodDef direct_calls[] = {
    {"enter_module", enter_module, METH_O, nullptr},
    {"leave_module", leave_module, METH_O, nullptr},
    {"hand_over", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(hand_over)), METH_FASTCALL, nullptr},
};

bool add_items(Words& words, PyObject* items) {
  if (!PyDict_CheckExact(items)) return false;
  words.add(static_cast<uint64_t>(PyDict_GET_SIZE(items)));
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(items, &at, &key, &value) != 0;) {
    const Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    words.add(static_cast<uint64_t>(hash));
    words.add(reinterpret_cast<uintptr_t>(value));
  }
  return true;
}

bool add_optimizer(Words& words, const py::handle& optimizer, bool with_state) {
  const py::object groups = attribute(optimizer.ptr(), names().groups);
  if (!PyList_Check(groups.ptr())) return false;
  for (const py::handle group : py::reinterpret_borrow<py::list>(groups)) {
    PyObject* params = PyDict_Check(group.ptr()) ? PyDict_GetItemWithError(group.ptr(), names().params) : nullptr;
    if (params == nullptr || !PyList_Check(params)) return false;
    words.add(static_cast<uint64_t>(PyList_GET_SIZE(params)));
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(params); ++at) words.add(reinterpret_cast<uintptr_t>(PyList_GET_ITEM(params, at)));
  }
  if (!with_state) return true;
  const py::object state = attribute(optimizer.ptr(), names().state);
  if (!PyDict_Check(state.ptr())) return false;
  PyObject *parameter, *held, *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(state.ptr(), &at, &parameter, &held) != 0;) {
    words.add(reinterpret_cast<uintptr_t>(parameter));
    if (!PyDict_Check(held)) continue;
    for (Py_ssize_t inner = 0; PyDict_Next(held, &inner, &name, &value) != 0;) {
      if (!THPVariable_Check(value)) continue;
      const Py_hash_t hash = PyObject_Hash(name);
      if (hash == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
      words.add(static_cast<uint64_t>(hash));
      words.add(reinterpret_cast<uintptr_t>(value));
    }
  }
  return true;
}

// Makes a key that changes whenever the tensors or children of modules (given as weak references) or optimizers, or their names, change;
// None if one is gone, or holds them in an unusual way.
py::object identities(const py::list& modules, const py::list& optimizers, bool with_state) {
  Words words;
  for (const py::handle reference : modules) {
    PyObject* module = referent(py::reinterpret_borrow<py::object>(reference));
    if (module == nullptr) return py::none();
    for (PyObject* name : {names().children, names().parameters, names().buffers})
      if (!add_items(words, attribute(module, name).ptr())) return py::none();
  }
  for (const py::handle optimizer : optimizers)
    if (!add_optimizer(words, optimizer, with_state)) return py::none();
  return as_bytes(words.key());
}

// The bytes of a storage as a tensor; None if it is gone.
py::object bytes_of(const StorageState& state) {
  auto storage = state.reference.lock();
  if (!storage || !(storage->device_type() == c10::kCPU || storage->device_type() == digesting_devices)) return py::none();
  const int64_t length = static_cast<int64_t>(storage->nbytes());
  const DispatchGuard plain;
  const DispatchKey key = storage->device_type() == c10::kCPU ? DispatchKey::CPU : DispatchKey::CUDA;
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), DispatchKeySet(key), caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({length});
  return tensor_object(tensor);
}

}  // namespace
}  // namespace determinism
