// The arguments of an op: whether they make it recorded, their key, and their Python forms.
#pragma once

#include "op_table.h"
#include "own_code.h"
#include "python_objects.h"

#include <torch/csrc/DynamicTypes.h>

#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace torch::jit {
// Declared here because its header would take up most of the compile time.
TORCH_PYTHON_API pybind11::object toPyObject(c10::IValue value);
}  // namespace torch::jit

namespace torch::utils {
PyObject* getTHPMemoryFormat(at::MemoryFormat format);
}  // namespace torch::utils

namespace determinism {
namespace {

bool is_on(const c10::impl::LocalDispatchKeySet& local, DispatchKeySet keys, DispatchKey key) {
  return (keys | local.included_).has(key) && !local.excluded_.has(key);
}

template <class Function>
void each_tensor(const c10::IValue& value, Function function) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined()) function(tensor);
  } else if (value.isList()) {
    const c10::ArrayRef<c10::IValue> items = value.toListRef();
    if (items.empty() || !(items[0].isTensor() || items[0].isNone() || items[0].isList())) return;
    for (const c10::IValue& item : items) each_tensor(item, function);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) each_tensor(item, function);
  }
}

// Whether a tensor belongs to a compiler or an exporter, and has only a shape.
bool is_without_values(const at::Tensor& tensor) {
  const GilGuard gil;
  const py::object type = py::type::of(tensor_object(tensor));
  const py::object module = type.attr("__module__");
  return py::isinstance<py::str>(module) && module.cast<std::string>().rfind("torch._subclasses.", 0) == 0;
}

enum class Way { PASS, MUTE, RECORD };

// How to handle an op: pass on to the ops inside it, mute it with everything inside it, or record it and mute what is inside.
Way way_of(const Op& op, c10::ArrayRef<const c10::IValue> inputs, DispatchKeySet& keys, bool& is_special) {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  at::Tensor first_special;
  for (const c10::IValue& input : inputs)
    each_tensor(input, [&](const at::Tensor& tensor) {
      keys = keys | tensor.key_set();
      if (!is_simple(tensor) && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        is_special = true;
        if (!first_special.defined() || tensor.key_set().has(DispatchKey::Python)) first_special = tensor;
      }
    });
  using Key = c10::impl::TorchDispatchModeKey;
  if (c10::impl::TorchDispatchModeTLS::any_modes_set() && (c10::impl::TorchDispatchModeTLS::get_mode(Key::FAKE).has_value() ||
                                                            c10::impl::TorchDispatchModeTLS::get_mode(Key::FUNCTIONAL).has_value()))
    return Way::MUTE;
  // Ops that run with dispatch to Python switched off, as when `torch.tensor` copies Python's numbers, are part of
  // the code that switched it off.
  if (local.excluded_.has(DispatchKey::Python)) return Way::MUTE;
  if (is_on(local, keys, DispatchKey::Python)) {
    if (first_special.defined() && first_special.key_set().has(DispatchKey::Python) && is_without_values(first_special)) return Way::MUTE;
    return Way::PASS;
  }
  constexpr DispatchKeySet wrapped({DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper, DispatchKey::BatchedNestedTensor});
  if (keys.has_any(wrapped) || is_on(local, keys, DispatchKey::FuncTorchDynamicLayerFrontMode) ||
      is_on(local, keys, DispatchKey::FuncTorchDynamicLayerBackMode) || is_on(local, keys, DispatchKey::Functionalize) ||
      (op.has_vmap_mode && is_on(local, keys, DispatchKey::FuncTorchVmapMode)))
    return Way::PASS;
  if (op.has_autocast && is_on(local, keys, DispatchKey::AutocastCPU)) return Way::PASS;
  if (op.has_autocast_on_gpu && is_on(local, keys, DispatchKey::AutocastCUDA)) return Way::PASS;
  if (op.is_composite) {
    // A kernel for the tensor's backend takes precedence over the composite one.
    const DispatchKey backend = c10::highestPriorityBackendTypeId(keys);
    const bool has_own = is_special || backend == DispatchKey::CUDA ? op.handle->hasKernelForDispatchKey(backend) : op.handle->hasKernelForDispatchKey(DispatchKey::CPU);
    if (!has_own) return Way::PASS;
  }
  return Way::RECORD;
}

py::object as_python(const c10::Argument& argument, const c10::IValue& value) {
  if (value.isNone()) return py::none();
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (value.isInt()) {
    if (type->kind() == c10::TypeKind::ScalarTypeType)
      return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<c10::ScalarType>(value.toInt()))));
    if (type->kind() == c10::TypeKind::LayoutType)
      return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<c10::Layout>(value.toInt()))));
    if (type->kind() == c10::TypeKind::MemoryFormatType)
      return py::reinterpret_borrow<py::object>(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(value.toInt())));
  }
  return torch::jit::toPyObject(value);
}

// The arguments of an op as a dispatch mode gets them: trailing default values are left out.
std::pair<py::tuple, py::dict> arguments_of(const Op& op, c10::ArrayRef<const c10::IValue> inputs) {
  const auto& described = op.handle->schema().arguments();
  const auto is_default = [&](size_t at) {
    const auto& value = described[at].default_value();
    return value.has_value() && *value == inputs[at];
  };
  size_t positional = std::min<size_t>(inputs.size(), described.size());
  const size_t count = positional;
  while (positional > 0 && described[positional - 1].kwarg_only()) --positional;
  const size_t first_named = positional;
  while (positional > 0 && is_default(positional - 1)) --positional;
  py::tuple args(positional);
  for (size_t at = 0; at < positional; ++at) args[at] = as_python(described[at], inputs[at]);
  py::dict kwargs;
  for (size_t at = first_named; at < count; ++at)
    if (!is_default(at)) kwargs[py::str(described[at].name())] = as_python(described[at], inputs[at]);
  return {args, kwargs};
}

// Adds an argument to a key; false if only Python can distinguish its values.
bool add_argument(Words& words, const c10::IValue& value) {
  if (value.isNone()) {
    words.add(1);
  } else if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {
      words.add(1);
    } else if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      if (!tensor.device().is_cpu() || tensor._is_zerotensor() || tensor.nbytes() == 0) return false;
      words.add(2);
      words.add(static_cast<uint64_t>(tensor.scalar_type()));
      uint64_t bits[2] = {0, 0};
      std::memcpy(bits, tensor.const_data_ptr(), std::min<size_t>(sizeof bits, tensor.nbytes()));
      words.add(bits[0]);
      words.add(bits[1]);
    } else {
      words.add(3);
    }
  } else if (value.isInt()) {
    words.add(4);
    words.add(static_cast<uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    uint64_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    words.add(5);
    words.add(bits);
  } else if (value.isBool()) {
    words.add(value.toBool() ? 6 : 7);
  } else if (value.isString()) {
    words.add(8);
    words.add_text(value.toStringRef());
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    const double parts[2] = {number.real(), number.imag()};
    uint64_t bits[2];
    std::memcpy(bits, parts, sizeof bits);
    words.add(9);
    words.add(bits[0]);
    words.add(bits[1]);
  } else if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    words.add(10);
    words.add(static_cast<uint64_t>(device.type()));
    words.add(static_cast<uint64_t>(static_cast<int64_t>(device.index())));
  } else if (value.isGenerator()) {
    words.add(11);
  } else if (value.isList()) {
    const c10::ArrayRef<c10::IValue> items = value.toListRef();
    words.add(12);
    words.add(items.size());
    for (const c10::IValue& item : items)
      if (!add_argument(words, item)) return false;
  } else {
    return false;
  }
  return true;
}

// Whether one of the tensors is not on the CPU.
bool has_device(c10::ArrayRef<const c10::IValue> inputs) {
  bool found = false;
  for (const c10::IValue& input : inputs) each_tensor(input, [&](const at::Tensor& tensor) { found |= !tensor.device().is_cpu(); });
  return found;
}

// The generator from which an op draws if none is passed, as `ops.generator_of`, for the current device if the index is not known.
at::Generator default_generator(std::optional<c10::Device> device, c10::ArrayRef<const c10::IValue> inputs) {
  for (size_t at = 0; !device.has_value() && at < inputs.size(); ++at)
    if (inputs[at].isTensor() && inputs[at].toTensor().defined()) device = inputs[at].toTensor().device();
  if (!device.has_value() || device->is_cpu()) return at::detail::getDefaultCPUGenerator();
  if (!device->has_index()) device = c10::impl::VirtualGuardImpl(device->type()).getDevice();
  return at::globalContext().defaultGenerator(*device);
}

}  // namespace
}  // namespace determinism
