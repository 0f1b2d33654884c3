// Guards around our own code inside a program: they hold the GIL, and shield the code from everything that the program has switched on.
#pragma once

#include "tables.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace determinism {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

PyObject* set_eval_frame = nullptr;  // Dynamo's function; found when the observer is installed.

class Recorder;
struct Context;

struct ThreadState {
  Recorder* recorder = nullptr;
  bool is_own = false;
  bool was_asked = false;
  int inside = 0;  // How deep it is in our own code, whose ops are not the program's.
  uint64_t generation = 0;
  int32_t number = -1;  // The thread number in the records of a thread that works for another one.
  Context* innermost = nullptr;
  PyThreadState* python = nullptr;  // The state of a program thread, while it is recorded.
};
thread_local ThreadState thread_state;

// Holds the GIL, with Python's current error set aside. Dynamo, which compiles every new Python frame while it is switched on,
// is off meanwhile: our own frames are not the program's.
class GilGuard {
 public:
  GilGuard() : was_held_(is_held()), state_(was_held_ ? PyGILState_LOCKED : PyGILState_Ensure()) {
    PyErr_Fetch(&type_, &value_, &traceback_);
    if (_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) != _PyEval_EvalFrameDefault) {
      compiler_ = set_compiler(Py_None);
      if (compiler_ == nullptr) PyErr_Clear();
    }
  }
  ~GilGuard() {
    if (compiler_ != nullptr) {
      PyErr_Clear();
      Py_XDECREF(set_compiler(compiler_));
      Py_DECREF(compiler_);
    }
    PyErr_Restore(type_, value_, traceback_);
    if (!was_held_) PyGILState_Release(state_);
  }
  GilGuard(const GilGuard&) = delete;
  GilGuard& operator=(const GilGuard&) = delete;

 private:
  // Whether this thread holds the GIL: it does for most ops, and this check takes a tenth of the time of `PyGILState_Ensure`.
  static bool is_held() {
#if PY_VERSION_HEX >= 0x030D0000
    const PyThreadState* running = PyThreadState_GetUnchecked();
#else
    const PyThreadState* running = _PyThreadState_UncheckedGet();
#endif
    return running != nullptr && running == thread_state.python;
  }

  // Sets the function that Dynamo calls for each frame; returns the previous one.
  static PyObject* set_compiler(PyObject* callback) {
    return set_eval_frame == nullptr ? nullptr : PyObject_CallOneArg(set_eval_frame, callback);
  }

  const bool was_held_;
  PyGILState_STATE state_;
  PyObject *type_, *value_, *traceback_;
  PyObject* compiler_ = nullptr;
};

// Python code that we run may trigger garbage collection, which may run ops.
struct HiddenGuard {
  HiddenGuard() { ++thread_state.inside; }
  ~HiddenGuard() { --thread_state.inside; }
  HiddenGuard(const HiddenGuard&) = delete;
  HiddenGuard& operator=(const HiddenGuard&) = delete;
};

// Shields our own ops from what the program has switched on: they run below autograd, autocast, modes and transforms.
class DispatchGuard {
 public:
  DispatchGuard() : guard_(included(), excluded()), functions_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~DispatchGuard() { at::impl::PythonTorchFunctionTLS::set_disabled_state(functions_); }
  DispatchGuard(const DispatchGuard&) = delete;
  DispatchGuard& operator=(const DispatchGuard&) = delete;

 private:
  static DispatchKeySet hidden() {
    return DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::FuncTorchDynamicLayerFrontMode,
                           DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::FuncTorchVmapMode, DispatchKey::Functionalize}) |
           c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
  }
  static DispatchKeySet included() { return c10::impl::tls_local_dispatch_key_set().included_ - hidden(); }
  static DispatchKeySet excluded() { return c10::impl::tls_local_dispatch_key_set().excluded_ | hidden(); }
  c10::impl::ForceDispatchKeyGuard guard_;
  at::impl::TorchFunctionDisabledState functions_;
  HiddenGuard inside_;
};

// Used around ops that we call, and Python code that may call some: hides them from profilers and from what the program has switched on.
// PyTorch rebuilds its lists of observers for this, which takes as long as a record, so ordinary records do without.
//
// The lists are behind a PyTorch lock, on which a child would wait forever if another thread held it at the fork. A forking thread holds
// the GIL, so our code takes the lock only with the GIL held.
class IsolationGuard {
 public:
  IsolationGuard() {
    const GilGuard gil;
    guard_.emplace();
  }
  ~IsolationGuard() {
    const GilGuard gil;
    guard_.reset();
  }
  IsolationGuard(const IsolationGuard&) = delete;
  IsolationGuard& operator=(const IsolationGuard&) = delete;

 private:
  const DispatchGuard plain_;
  std::optional<at::DisableRecordFunctionGuard> guard_;
};

// A thread reads the list of observers at its first op, and again when the list has changed, behind the same lock and without
// the GIL. This makes it do so now instead.
void read_observers() { at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION); }

}  // namespace
}  // namespace determinism
