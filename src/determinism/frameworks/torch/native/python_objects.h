// Python objects: attributes, tensors and digests; and keys made of numbers.
#pragma once

#include "tables.h"

#include <structmember.h>

namespace determinism {
namespace {

// Names of attributes that are looked up often.
struct Names {
  PyObject* module = PyUnicode_InternFromString("module");
  PyObject* children = PyUnicode_InternFromString("_modules");
  PyObject* parameters = PyUnicode_InternFromString("_parameters");
  PyObject* buffers = PyUnicode_InternFromString("_buffers");
  PyObject* groups = PyUnicode_InternFromString("param_groups");
  PyObject* params = PyUnicode_InternFromString("params");
  PyObject* state = PyUnicode_InternFromString("state");
};
Names& names() {
  static Names made;
  return made;
}

py::object attribute(PyObject* object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object, name);
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

int64_t integer(PyObject* object, PyObject* name) {
  const int64_t value = PyLong_AsLongLong(attribute(object, name).ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

// Where objects of a class with `__slots__` store an attribute; faster than looking it up.
class Slot {
 public:
  Slot() = default;
  Slot(const py::object& type, const char* name) {
    const py::object descriptor = type.attr(name);
    if (Py_TYPE(descriptor.ptr()) != &PyMemberDescr_Type) throw std::runtime_error(std::string("no slot holds ") + name);
    offset_ = reinterpret_cast<PyMemberDescrObject*>(descriptor.ptr())->d_member->offset;
  }

  // The value of an object's attribute; borrowed. Objects of these classes have all attributes set from the start.
  PyObject* of(PyObject* object) const { return at(object); }
  void set(PyObject* object, PyObject* value) const {
    Py_INCREF(value);
    Py_XDECREF(std::exchange(at(object), value));
  }

 private:
  PyObject*& at(PyObject* object) const { return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_); }

  Py_ssize_t offset_ = 0;
};

Digest from_bytes(const py::handle& value) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(value.ptr(), &data, &size) != 0) throw py::error_already_set();
  if (size != 16) throw std::runtime_error("a digest has 16 bytes");
  Digest digest;
  std::memcpy(digest.data(), data, sizeof digest);
  return digest;
}

const at::Tensor& unpacked(const py::handle& tensor) {
  if (!THPVariable_Check(tensor.ptr())) throw py::type_error("expected a tensor");
  return THPVariable_Unpack(tensor.ptr());
}

py::object tensor_object(const at::Tensor& tensor) { return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)); }

// A key made of numbers, fast to build.
class Words {
 public:
  void add(uint64_t word) { words_.push_back(word); }
  void add_text(const std::string& text) {
    add(text.size());
    for (size_t at = 0; at < text.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min<size_t>(8, text.size() - at));
      add(word);
    }
  }
  Digest key() const { return digest_of(words_.data(), words_.size() * sizeof(uint64_t)); }

  // A number that differs for most keys.
  size_t slot() const {
    uint64_t mixed = words_.size();
    for (uint64_t word : words_) mixed = (mixed ^ word) * 0x9E3779B97F4A7C15u;
    return static_cast<size_t>(mixed >> 32);
  }
  bool are(c10::ArrayRef<uint64_t> words) const { return c10::ArrayRef<uint64_t>(words_) == words; }
  const uint64_t* begin() const { return words_.begin(); }
  const uint64_t* end() const { return words_.end(); }

 private:
  c10::SmallVector<uint64_t, 64> words_;
};

}  // namespace
}  // namespace determinism
