// Records ops below Python: an observer that PyTorch calls at the first dispatch of every op, before autograd, and after it
// has run. Ordinary ops, on strided tensors, are recorded here completely, from their inputs to their rows in the spool.
// Rare ops are passed to the Python recorder as a whole. See docs/recorder.md.

// The headers contain definitions: only this file includes them, so that the compiler sees all the code at once.
#include "arguments.h"
#include "outside_ops.h"

#include <torch/csrc/Generator.h>

#include <ATen/SequenceNumber.h>

#include <exception>

#include <unistd.h>

extern "C" {
void determinism_digest_base(const void*, size_t, unsigned char*);
#if defined(__x86_64__)
void determinism_digest_avx2(const void*, size_t, unsigned char*);
void determinism_digest_avx512(const void*, size_t, unsigned char*);
#endif
}

namespace determinism {

void (*digest_bytes)(const void*, size_t, unsigned char*) = determinism_digest_base;

namespace {

const char* choose_digest() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) {
    digest_bytes = determinism_digest_avx512;
    return "avx512";
  }
  if (__builtin_cpu_supports("avx2")) {
    digest_bytes = determinism_digest_avx2;
    return "avx2";
  }
#endif
  return "base";
}

PyObject* unread_in = nullptr;  // The code whose reads of values are not recorded: `recorder.UNREAD_IN`.

// A storage used by an op of a thread other than the main one, with its writers as of the op's beginning.
struct Used {
  std::shared_ptr<StorageState> state;
  int64_t writes;
  std::shared_ptr<StorageState> known;  // The main thread's state of it, or null.
  int64_t record;

  bool is_overlapped() const { return state->writes != writes || (known != nullptr && known->record != record); }
};

enum class Mode { MUTED, VIEW, NATIVE, PYTHON };

// One op between its beginning and its end.
struct Context final : at::ObserverContext {
  Mode mode = Mode::MUTED;
  Op* op = nullptr;
  Recorder* recorder = nullptr;
  Stream* stream = nullptr;
  Context* parent = nullptr;
  int exceptions = 0;
  bool has_autograd = false;
  bool has_failed = false;

  c10::SmallVector<InputEdge, 6> edges;
  c10::SmallVector<InputDigest, 4> digests;
  c10::SmallVector<std::pair<size_t, at::Tensor>, 2> read;  // Which of `digests` must still be computed, of which tensors.
  Pending pending;  // The pending ones of `digests`.
  std::vector<std::pair<size_t, at::Tensor>> watched;  // Which of `digests` another thread may invalidate while the op runs.
  std::vector<Used> used;
  c10::SmallVector<at::Tensor, 2> targets;
  std::optional<at::Generator> generator;
  Digest state{};
  int32_t arguments = -1;
  bool wrote_view = false;
  PyObject* call = nullptr;  // Python's object for an op, between its beginning and its end.
};

at::CallbackHandle callback = 0;  // 0: not registered.
pid_t registered_in = 0;

// Our own failures never reach the program: they become blind spots. Anything that is not an `Exception`, such as an
// interrupt by the user, came from outside, and is raised in the program as soon as its own code runs again.
void failed(Recorder& recorder, const Op& op, const std::exception_ptr& error) noexcept {
  try {
    const GilGuard gil;
    const IsolationGuard apart;
    const std::string name = op.overload.empty() ? op.name : op.name + "." + op.overload;
    try {
      std::rethrow_exception(error);
    } catch (py::error_already_set& raised) {
      if (raised.matches(PyExc_Exception)) {
        py::handle(recorder.owner).attr("failed")(name, raised.value());
      } else {
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), raised.type().ptr());
      }
    } catch (const std::exception& raised) {
      std::string text = raised.what();
      const size_t end = text.find('\n');
      const py::object made = py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(text.substr(0, end));
      py::handle(recorder.owner).attr("failed")(name, made);
    }
  } catch (...) {
    // The failure cannot even be reported.
  }
}

void learn(Op& op, Recorder& recorder) {
  const py::tuple learned = py::handle(recorder.owner).attr("native_learn")(op.name, op.overload);
  op.flags = learned[1].cast<int>();
  op.written = learned[2].cast<std::vector<int>>();
  op.accumulate_at = learned[3].cast<int>();
  op.hidden = learned[4].cast<std::vector<int>>();
  op.hidden_flag = learned[5].cast<int>();
  op.workspaces = learned[6].cast<std::vector<int>>();
  op.known = py::object(learned[0]).release().ptr();
  op.is_learned = true;
}

// Collects what is known about an op's arguments before it runs. False: Python must do so.
bool begin_native(Context& context, c10::ArrayRef<const c10::IValue> inputs) {
  Op& op = *context.op;
  Recorder& recorder = *context.recorder;
  Words words;
  words.add(op.id);
  std::optional<c10::Device> device;
  for (size_t at = 0; at < inputs.size(); ++at) {
    const c10::IValue& input = inputs[at];
    if (!add_argument(words, input)) return false;
    if (input.isDevice()) {
      device = input.toDevice();
      if (!device->is_cpu() && device->type() != digesting_devices) return false;
    }
    if (input.isGenerator() && op.is(DRAWS)) context.generator = input.toGenerator();
  }
  // When a non-blocking copy ends is unknown.
  if (op.non_blocking_at >= 0 && inputs[op.non_blocking_at].isBool() && inputs[op.non_blocking_at].toBool() && has_device(inputs)) return false;
  if (op.is(DRAWS) && !context.generator.has_value()) context.generator = default_generator(device, inputs);
  {
    const GilGuard gil;
    const HiddenGuard inside;
    if (context.generator.has_value()) context.state = recorder.state_of(*context.generator);
    auto& numbers = context.stream->arguments();
    const Digest key = words.key();
    auto found = numbers.find(key);
    if (found == numbers.end()) {
      const IsolationGuard apart;
      const auto [args, kwargs] = arguments_of(op, inputs);
      const int32_t number = py::handle(recorder.owner).attr("native_arguments")(py::handle(op.known), args, kwargs).cast<int32_t>();
      found = numbers.emplace(key, number).first;
    }
    context.arguments = found->second;
    const auto is_number = [](const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->is_wrapped_number(); };
    size_t written = 0;
    for (size_t at = 0; at < inputs.size(); ++at) {
      const bool is_written = written < op.written.size() && std::find(op.written.begin(), op.written.end(), static_cast<int>(at)) != op.written.end();
      if (!is_written) {
        if (!op.is(UNVALUED))
          each_tensor(inputs[at], [&](const at::Tensor& tensor) {
            if (!is_number(tensor)) recorder.look_at(context, tensor, 0);
          });
        continue;
      }
      bool reads = op.is(READS_WRITTEN);
      if (op.accumulate_at >= 0 && op.accumulate_at < static_cast<int>(inputs.size()) && inputs[op.accumulate_at].isBool())
        reads = reads || inputs[op.accumulate_at].toBool();
      each_tensor(inputs[at], [&](const at::Tensor& tensor) {
        context.targets.push_back(tensor);
        if (op.is(UNVALUED)) return;
        bool fills;
        if (reads) {
          fills = recorder.look_at(context, tensor, 0);
        } else {
          StorageState& state = context.stream->state(tensor);
          fills = context.stream->layout(tensor, state).fills_storage;
        }
        if ((op.is(KEEPS_UNWRITTEN) && !reads) || !fills) recorder.look_at(context, tensor, 1);
      });
    }
    if (!op.hidden.empty() && inputs[op.hidden_flag].isBool() && inputs[op.hidden_flag].toBool())
      for (int at : op.hidden) each_tensor(inputs[at], [&](const at::Tensor& tensor) { context.targets.push_back(tensor); });
    context.wrote_view = op.is(RETURNS_TARGET) && !context.targets.empty() && context.targets[0].is_view();
    ask_devices(context, *context.stream);
  }
  // Inputs not written by a record are digested before the op runs, without blocking other Python threads.
  for (const auto& [at, tensor] : context.read)
    if (!is_on_device(tensor)) context.digests[at].digest = digest_tensor(tensor);
  context.read.clear();
  return true;
}

void begin_python(Context& context, c10::ArrayRef<const c10::IValue> inputs) {
  const GilGuard gil;
  const IsolationGuard apart;
  const auto [args, kwargs] = arguments_of(*context.op, inputs);
  py::object call = py::handle(context.recorder->owner).attr("native_before")(py::handle(context.op->known), args, kwargs);
  context.call = call.release().ptr();
}

void add_written(c10::SmallVectorImpl<at::Tensor>& written, const at::Tensor& tensor) {
  for (const at::Tensor& known : written)
    if (known.is_same(tensor)) return;
  written.push_back(tensor);
}

// Whether the bytes show that another thread wrote what the op that just ran had read.
bool are_changed(const Context& context, const c10::SmallVectorImpl<at::Tensor>& written) {
  for (const auto& [at, tensor] : context.watched) {
    const auto is_here = [&](const at::Tensor& own) { return own.has_storage() && own.storage().is_alias_of(tensor.storage()); };
    if (std::none_of(written.begin(), written.end(), is_here) && digest_tensor(tensor) != context.digests[at].digest) return true;
  }
  return false;
}

// Whether the code that reads a value is `unread_in`. Requires the GIL.
bool is_unread() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr || unread_in == nullptr) return false;
  PyCodeObject* code = PyFrame_GetCode(frame);
  Py_DECREF(code);  // The frame keeps it alive.
  return reinterpret_cast<PyObject*>(code) == unread_in;
}

// The output for a non-tensor value, as from `native_value`; plain numbers are handled without calling it.
Output value_output(Stream& stream, py::handle owner, const py::object& value) {
  if (PyFloat_CheckExact(value.ptr()) || PyLong_CheckExact(value.ptr()) || PyBool_Check(value.ptr())) {
    const py::str text = py::repr(value);
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (data == nullptr) throw py::error_already_set();
    return {stream.value_layout(), digest_of(data, static_cast<size_t>(size))};
  }
  const IsolationGuard apart;
  const py::tuple found = owner.attr("native_value")(value);
  return {found[0].cast<int32_t>(), from_bytes(found[1])};
}

void end_native(Context& context, c10::ArrayRef<c10::IValue> outputs) {
  Op& op = *context.op;
  Recorder& recorder = *context.recorder;
  Stream& stream = *context.stream;
  c10::SmallVector<at::Tensor, 4> written;
  for (const at::Tensor& target : context.targets) add_written(written, target);
  if (!op.is(RETURNS_TARGET))
    for (const c10::IValue& output : outputs) each_tensor(output, [&](const at::Tensor& tensor) { add_written(written, tensor); });
  if (written.empty() && outputs.empty()) return;

  const bool has_no_values = op.is(UNINITIALIZED) || op.is(ASYNCHRONOUS);
  c10::SmallVector<Output, 4> made;
  c10::SmallVector<bool, 4> special;
  c10::SmallVector<size_t, 4> asked;  // Which of them are digested on a device.
  c10::SmallVector<at::Tensor, 4> on_device;
  for (size_t at = 0; at < written.size(); ++at) {
    const bool is_digested = !has_no_values && std::find(op.workspaces.begin(), op.workspaces.end(), static_cast<int>(at)) == op.workspaces.end();
    special.push_back(!is_simple(written[at]));
    const bool is_asked = is_digested && !special[at] && is_on_device(written[at]);
    if (is_asked) {
      asked.push_back(at);
      on_device.push_back(written[at]);
    }
    made.push_back({-1, is_digested && !special[at] && !is_asked ? digest_tensor(written[at]) : Digest{}});
  }
  bool has_overlapped = !context.watched.empty() && are_changed(context, written);

  const GilGuard gil;
  const HiddenGuard inside;
  Pending pending;
  if (!asked.empty()) stream.digest(on_device, asked, pending, [&](size_t number, const Digest& digest) { made[asked[number]].digest = digest; });
  for (const Used& used : context.used) has_overlapped |= used.is_overlapped();
  const bool has_drawn = context.generator.has_value() && recorder.state_of(*context.generator) != context.state;
  const py::handle owner(recorder.owner);
  int8_t role = 0;
  py::object value;
  std::vector<StorageState*> states(written.size(), nullptr);
  for (size_t at = 0; at < written.size(); ++at) {
    if (special[at]) {
      const IsolationGuard apart;
      const bool is_digested = !has_no_values && std::find(op.workspaces.begin(), op.workspaces.end(), static_cast<int>(at)) == op.workspaces.end();
      const py::tuple found = owner.attr("native_output")(tensor_object(written[at]), is_digested);
      made[at] = {found[0].cast<int32_t>(), from_bytes(found[1])};
      if (!found[2].is_none()) states[at] = found[2].cast<StorageState*>();
      continue;
    }
    StorageState& state = stream.state(written[at]);
    states[at] = &state;
    made[at].layout = stream.layout(written[at], state).number;
  }
  if (written.empty()) {
    if (is_unread()) return;
    if (outputs.size() == 1) {
      value = torch::jit::toPyObject(outputs[0]);
    } else {
      py::tuple values(outputs.size());
      for (size_t at = 0; at < outputs.size(); ++at) values[at] = torch::jit::toPyObject(outputs[at]);
      value = values;
    }
    if (value.is_none()) return;
    role = 1;
    made.push_back(value_output(stream, owner, value));
  }
  const int64_t record = recorder.append(role, stream.op_number(op), context.arguments, context, made, pending,
                                         has_drawn ? c10::ArrayRef<Digest>(context.state) : c10::ArrayRef<Digest>());
  if (has_overlapped) stream.python().attr("note_overlap")(record);
  if (context.wrote_view) recorder.links.wrote_view = recorder.links.newest;
  recorder.wrote(states, record, op.is(UNINITIALIZED));
  if (op.is(LIFT)) {
    if (!states.empty() && states[0] != nullptr && states[0]->externally_writable) states[0]->lifted = py::make_tuple(made[0].layout, pending.of(0, made[0].digest, stream.pending_type()));
  } else if (op.is(ASYNCHRONOUS)) {
    for (StorageState* state : states)
      if (state != nullptr) state->externally_writable = true;
  }
  if (role == 1 && PyFloat_CheckExact(value.ptr())) {
    const bool has_edge = !context.edges.empty();
    stream.add_read_number(record, has_edge ? context.edges[0].record : -1, value, recorder.step(), has_edge ? context.edges[0].output : 0);
  }
}

void end_python(Context& context, c10::ArrayRef<c10::IValue> outputs) {
  const GilGuard gil;
  const IsolationGuard apart;
  py::object result = py::none();
  if (outputs.size() == 1) {
    result = torch::jit::toPyObject(outputs[0]);
  } else if (!outputs.empty()) {
    py::tuple results(outputs.size());
    for (size_t at = 0; at < outputs.size(); ++at) results[at] = torch::jit::toPyObject(outputs[at]);
    result = results;
  }
  const py::object call = py::reinterpret_steal<py::object>(std::exchange(context.call, nullptr));
  py::handle(context.recorder->owner).attr("native_after")(call, result);
}

bool has_autograd(DispatchKeySet keys) {
  return is_on(c10::impl::tls_local_dispatch_key_set(), keys, DispatchKey::AutogradFunctionality);
}

template <class Value>
c10::ArrayRef<Value> last_of(c10::ArrayRef<Value> values, size_t count) {
  return values.size() > count ? values.slice(values.size() - count) : values;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  ThreadState& thread = thread_state;
  if (!records_ops || thread.inside > 0) return nullptr;
  Recorder* recorder = recorder_of_thread(thread);
  if (recorder == nullptr || recorder->is_busy || !(recorder->is_active || recorder->is_asleep)) return nullptr;
  Context* parent = thread.innermost;
  // What an op runs below autograd is part of it. What its autograd kernel runs in addition is not: a formula of
  // forward-mode differentiation, or what a custom op prepares for its backward.
  if (parent != nullptr && !(parent->has_autograd && !c10::impl::tls_is_dispatch_key_excluded(DispatchKey::AutogradFunctionality)))
    return nullptr;
  Op* op = ops().of(function);
  if (op == nullptr || !op->handle.has_value()) return nullptr;
  std::unique_ptr<Context> context;
  try {
    DispatchKeySet keys;
    bool is_special = false;
    // A boxed call exposes the interpreter's whole stack, which may have other values below the inputs.
    const auto inputs = last_of(function.inputs(), op->num_arguments);
    const Way way = way_of(*op, inputs, keys, is_special);
    if (way == Way::PASS) return nullptr;
    context = std::make_unique<Context>();
    context->op = op;
    context->recorder = recorder;
    context->parent = parent;
    context->exceptions = std::uncaught_exceptions();
    if (way == Way::RECORD) {
      if (recorder->is_asleep && !recorder->is_active) {
        const GilGuard gil;
        const IsolationGuard apart;
        py::handle(recorder->owner).attr("is_ready")();
        if (!recorder->is_active) return nullptr;
      }
      context->stream = recorder->stream.get();
      context->has_autograd = op->has_autograd && has_autograd(keys);
      if (!op->is_learned) {
        const GilGuard gil;
        const IsolationGuard apart;
        if (!op->is_learned) learn(*op, *recorder);
      }
      if (op->is(IGNORED)) {
        context->mode = Mode::MUTED;
      } else if (op->is(VIEW)) {
        context->mode = Mode::VIEW;
      } else if (!is_special && !recorder->asks_python && !op->is(BY_PYTHON) && begin_native(*context, inputs)) {
        context->mode = Mode::NATIVE;
      } else {
        begin_python(*context, inputs);
        context->mode = Mode::PYTHON;
      }
    }
  } catch (...) {
    if (context == nullptr) return nullptr;
    context->mode = Mode::MUTED;
    context->has_failed = true;
    failed(*recorder, *op, std::current_exception());
  }
  thread.innermost = context.get();
  return context;
}

void end(const at::RecordFunction& function, at::ObserverContext* observed) {
  if (observed == nullptr) return;
  Context& context = *static_cast<Context*>(observed);
  ThreadState& thread = thread_state;
  thread.innermost = context.parent;
  Recorder& recorder = *context.recorder;
  const bool has_raised = std::uncaught_exceptions() > context.exceptions;
  try {
    const bool is_recorded = !has_raised && is_installed && recorder.is_active && recorder.stream.get() == context.stream;
    const auto outputs = [&] {
      return last_of(c10::ArrayRef<c10::IValue>(function.outputs()), context.op->num_results);
    };
    if (is_recorded && context.mode == Mode::NATIVE) {
      end_native(context, outputs());
    } else if (is_recorded && context.mode == Mode::PYTHON) {
      end_python(context, outputs());
    } else if (is_recorded && context.mode == Mode::VIEW && thread.is_own) {
      if (static_cast<int64_t>(at::sequence_number::peek()) != recorder.links.last) {
        const GilGuard gil;
        const HiddenGuard inside;
        recorder.link_view();
      }
    }
  } catch (...) {
    failed(recorder, *context.op, std::current_exception());
  }
  if (context.call != nullptr || !context.pending.empty()) {
    const GilGuard gil;
    context.pending.clear();
    Py_XDECREF(std::exchange(context.call, nullptr));
  }
}

void install(py::object threads, const py::object& unread, bool of_ops) {
  if (is_installed) throw std::runtime_error("the observer is installed already");
  Py_XSETREF(unread_in, py::object(unread).release().ptr());
  if (set_eval_frame == nullptr)
    set_eval_frame = py::object(py::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame")).release().ptr();
  ++generation;
  threads_of_python = threads.release().ptr();
  is_installed = true;
  records_ops = of_ops;
  if (callback != 0 || !of_ops) return;
  registered_in = getpid();
  callback = at::addGlobalCallback(at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  read_observers();
}

void uninstall() {
  if (!is_installed.exchange(false)) return;
  records_ops = false;
  ++generation;
  // In a forked child, a thread that no longer exists may hold the lock of PyTorch's list: the observer stays, and does nothing.
  if (callback != 0 && getpid() == registered_in) at::removeCallback(std::exchange(callback, 0));
  Py_CLEAR(threads_of_python);
}

}  // namespace
}  // namespace determinism

PYBIND11_MODULE(_determinism_observer, module) {
  using namespace determinism;
  module.attr("instructions") = choose_digest();
  // Never removed: ops are looked up as long as the process lives.
  static auto* const listening = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<RemovedOps>()));
  (void)listening;
  ops();  // Made now: if a thread were making it while another forks, it could never be made in the child.
  module.attr("built_for") = BUILT_FOR;
  module.def("install", &install);
  module.def("uninstall", &uninstall);
  module.def("attach_thread", &attach_thread);
  module.def("detach_thread", &detach_thread);
  // Sets whether observers, such as a profiler, see the ops of this thread; returns the previous setting.
  module.def("observe", [](bool is_observed) {
    const bool before = at::isRecordFunctionEnabled();
    at::enableRecordFunction(is_observed);
    return before;
  });
  module.def("hide", [] { ++thread_state.inside; });
  module.def("show", [] { --thread_state.inside; });
  module.def("are_own", &are_own);
  module.def("digest_each", &digest_each);
  module.def("identities", &identities);
  for (PyMethodDef& method : direct_calls)
    module.attr(method.ml_name) = py::reinterpret_steal<py::object>(PyCFunction_New(&method, nullptr));
  module.def("digest", [](const py::bytes& data) {
    const std::string_view view = data;
    return as_bytes(digest_of(view.data(), view.size()));
  });
  module.def("digest_tensor", [](const py::object& tensor) {
    if (!is_simple(unpacked(tensor)) || !unpacked(tensor).device().is_cpu()) throw py::value_error("expected a strided tensor on the CPU");
    return as_bytes(digest_tensor(unpacked(tensor)));
  });

  py::class_<StorageState, std::shared_ptr<StorageState>>(module, "StorageState")
      .def_readwrite("record", &StorageState::record)
      .def_readwrite("output", &StorageState::output)
      .def_readwrite("externally_writable", &StorageState::externally_writable)
      .def_readwrite("is_shared", &StorageState::is_shared)
      .def_readwrite("is_unwritten", &StorageState::is_unwritten)
      .def_readwrite("is_of_threads", &StorageState::is_of_threads)
      .def_readwrite("writes", &StorageState::writes)
      .def_readwrite("layouts", &StorageState::layouts)
      .def_readwrite("digest", &StorageState::digest)
      .def_readwrite("view", &StorageState::view)
      .def_readwrite("lifted", &StorageState::lifted)
      .def_readwrite("writer", &StorageState::writer)
      .def_property_readonly("key", [](const StorageState& state) { return reinterpret_cast<uintptr_t>(state.key); })
      .def("bytes", &bytes_of);

  py::class_<Link>(module, "Link").def_readonly("record", &Link::record).def_readonly("stack", &Link::stack).def_readonly("module", &Link::module);

  py::class_<ForwardLinks>(module, "ForwardLinks")
      .def_readonly("last", &ForwardLinks::last)
      .def_readwrite("newest", &ForwardLinks::newest)
      .def_readwrite("wrote_view", &ForwardLinks::wrote_view)
      .def("add", [](ForwardLinks& links, int64_t sequence, const py::object& link) {
        links.add(sequence, Link{link.attr("record").cast<int64_t>(), link.attr("stack").cast<int32_t>(), link.attr("module").cast<int32_t>()});
      })
      // A node that only accumulates gradients has the greatest number, which no link has.
      .def("of", [](const ForwardLinks& links, uint64_t sequence) { return links.of(static_cast<int64_t>(sequence)); })
      .def("age", &ForwardLinks::age);

  py::class_<DeviceQueue, std::shared_ptr<DeviceQueue>>(module, "DeviceQueue")
      .def(py::init<const py::object&, const py::dict&, const py::buffer&>())
      .def("ask", [](DeviceQueue& queue, const py::list& tensors) {
        c10::SmallVector<at::Tensor, 8> asked;
        for (const py::handle tensor : tensors) asked.push_back(unpacked(tensor));
        py::object delivery;
        const int32_t first = queue.ask(asked, delivery);
        if (first < 0) return py::object(py::none());
        const py::object type = py::module_::import("determinism.trace.spool").attr("PendingDigest");
        py::list found;
        for (size_t at = 0; at < asked.size(); ++at) found.append(type(delivery, first + static_cast<int32_t>(at)));
        return py::object(std::move(found));
      });

  // Sets which devices digest their own tensors: "cuda", or "cpu" in tests.
  module.def("digest_on", [](const std::string& kind) { digesting_devices = c10::Device(kind).type(); });

  py::class_<Stream, std::shared_ptr<Stream>>(module, "Stream")
      .def(py::init<const py::object&>())
      .def("state", [](Stream& stream, const py::object& tensor) {
        stream.state(unpacked(tensor));
        return stream.storages.shared(unpacked(tensor));
      })
      .def("known", [](Stream& stream, const py::object& tensor) { return stream.storages.known(unpacked(tensor)); })
      .def("states", [](Stream& stream) { return stream.storages.all(); })
      .def("written_elsewhere", [](Stream& stream, uintptr_t key) { stream.storages.written_elsewhere(reinterpret_cast<c10::StorageImpl*>(key)); })
      .def("attach", [](Stream& stream, const py::buffer& memory, const py::buffer& counts, const std::vector<int64_t>& offsets,
                        const std::vector<int64_t>& sizes, int64_t record_capacity, int64_t child_capacity, int64_t count_at, int64_t first_at) {
        stream.rows.attach(memory, counts, offsets, sizes, record_capacity, child_capacity, count_at, first_at);
      })
      .def("detach", [](Stream& stream) { stream.rows.detach(); })
      .def("end_stacks_at", [](Stream& stream, const py::object& frame) { stream.outermost = frame.is_none() ? nullptr : frame.ptr(); })
      .def("close", [](Stream& stream) {
        stream.rows.detach();
        stream.storages = StorageTable();
        stream.forget_devices();
      });

  py::class_<Recorder, std::shared_ptr<Recorder>>(module, "Recorder")
      .def(py::init([](const py::object& owner) { return std::make_shared<Recorder>(owner); }))
      .def_readwrite("is_active", &Recorder::is_active)
      .def_readwrite("is_busy", &Recorder::is_busy)
      .def_readwrite("is_asleep", &Recorder::is_asleep)
      .def_readwrite("is_waiting", &Recorder::is_waiting)
      .def_readwrite("asks_python", &Recorder::asks_python)
      .def_readwrite("graph_depth", &Recorder::graph_depth)
      .def_property_readonly("links", [](Recorder& recorder) -> ForwardLinks& { return recorder.links; }, py::return_value_policy::reference_internal)
      .def("begin", &Recorder::begin)
      .def("look_at_each", &look_at_each)
      .def("hold", &hold)
      .def("module_returned", &module_returned)
      .def("state_digest", [](Recorder& recorder, const py::handle& generator) {
        at::Generator unwrapped = THPGenerator_Unwrap(generator.ptr());
        return as_bytes(recorder.state_of(unwrapped));
      })
      .def("close", &Recorder::close);
}
