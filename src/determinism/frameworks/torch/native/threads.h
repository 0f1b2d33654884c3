// Which recorder gets the ops of a thread.
#pragma once

#include "recorder.h"

#if __has_include(<torch/csrc/autograd/node.h>)
#include <torch/csrc/autograd/node.h>
#else
#include <torch/csrc/autograd/function.h>
#endif

namespace determinism {
namespace {

std::atomic<bool> is_installed{false};
std::atomic<bool> records_ops{false};  // If false, only events other than ops are recorded.
std::atomic<uint64_t> generation{1};

PyObject* threads_of_python = nullptr;  // The `Threads` of the session, while one records.

// The recorder of this thread. A thread of the framework, such as one that takes over a deep backward, works for the main one.
Recorder* recorder_of_thread(ThreadState& thread) {
  if (thread.generation != generation) {
    thread.recorder = nullptr;
    thread.was_asked = thread.is_own = false;
    thread.number = -1;
    thread.generation = generation;
  }
  if (thread.recorder != nullptr || thread.was_asked) return thread.recorder;
  if (!torch::autograd::get_current_node()) return nullptr;
  thread.was_asked = true;
  const GilGuard gil;
  if (threads_of_python == nullptr) return nullptr;
  const py::object recorder = py::handle(threads_of_python).attr("recorder")();
  if (!recorder.is_none()) thread.recorder = recorder.attr("native").cast<Recorder*>();
  return thread.recorder;
}

void attach_thread(Recorder& recorder) {
  read_observers();
  thread_state.generation = generation;
  recorder.python_thread = PyThreadState_Get();
  thread_state.python = recorder.python_thread;
  thread_state.recorder = &recorder;
  thread_state.is_own = true;
  thread_state.was_asked = true;
}

void detach_thread() {
  thread_state.recorder = nullptr;
  thread_state.python = nullptr;
}

// The recorder of this thread, if it is a recorded thread of the program and not one that works for another; else null.
Recorder* own_recorder() {
  const ThreadState& thread = thread_state;
  if (!is_installed || thread.generation != generation || thread.recorder == nullptr || !thread.is_own) return nullptr;
  return thread.recorder;
}

}  // namespace
}  // namespace determinism
