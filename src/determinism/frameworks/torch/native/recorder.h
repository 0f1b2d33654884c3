// The recorder of one thread: its state, its reads and writes, the rows that it appends.
#pragma once

#include "stream.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>

#include <chrono>
#include <thread>

namespace determinism {
namespace {

// An active module call, as last seen in Python's list of calls.
// It is identified by its token: holding the call itself would keep alive the module, and what its caller's frame holds.
struct Call {
  py::object token;
  PyObject* frame;  // Borrowed: the frame exists as long as the call is in the list.
  int32_t module;
  int64_t outside = -1;
};

// The position of a thread within the program, which `progress.Progress` writes into its `place`.
class Place {
 public:
  // The places of the thread itself and of the main thread, whose step applies as long as its own is -1.
  Place(const py::buffer& own, const py::buffer& process) : own_(own.request()), process_(process.request()) {}

  int32_t step() const { return static_cast<int32_t>(at(own_, 0) < 0 ? at(process_, 0) : at(own_, 0)); }
  int8_t phase() const { return static_cast<int8_t>(at(own_, 1)); }
  void set_phase(int8_t phase) { static_cast<int64_t*>(own_.ptr)[1] = phase; }
  int64_t optimizer_depth() const { return at(own_, 2); }
  // Whether an update by the program itself is expected, and whether a write by this record is one.
  bool awaits_update() const { return at(own_, 3) >= 0; }
  bool is_update(int64_t record) const { return awaits_update() && record >= at(own_, 3); }

 private:
  static int64_t at(const py::buffer_info& cells, size_t index) { return static_cast<const int64_t*>(cells.ptr)[index]; }

  py::buffer_info own_, process_;
};

// The object of a weak reference, or null; borrowed.
PyObject* referent(const py::object& reference) {
  PyObject* object = PyWeakref_GetObject(reference.ptr());
  return object == Py_None ? nullptr : object;
}

// A module called below an outermost one, with the link of the ops in its calls. Addresses can be reused.
struct KnownModule {
  py::object outermost, module;  // Weak references.
  py::object link;
};
struct PairHash {
  size_t operator()(const std::pair<PyObject*, PyObject*>& pair) const {
    return reinterpret_cast<uintptr_t>(pair.first) * 31 ^ reinterpret_cast<uintptr_t>(pair.second);
  }
};

// The state of a generator when it was last digested.
struct GeneratorState {
  const at::GeneratorImpl* generator = nullptr;
  at::mt19937_data_pod engine{};
  std::optional<float> next_float;
  std::optional<double> next_double;
  std::optional<std::pair<uint64_t, uint64_t>> seed;  // And the offset: together the whole state of a GPU generator.
  Digest digest{};
};

// The seed and offset of a GPU generator; none for other devices, or while a graph is captured.
std::optional<std::pair<uint64_t, uint64_t>> seed_of(const at::Generator& generator) {
  if (generator.device().type() != c10::kCUDA) return std::nullopt;
  try {
    return std::make_pair(generator.current_seed(), generator.unsafeGetGeneratorImpl()->get_offset());
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// The recorder of one thread.
class Recorder {
 public:
  explicit Recorder(py::handle owner) : owner(owner.ptr()) {}

  PyObject* const owner;  // The Python recorder, which holds this one.
  bool is_active = false;
  bool is_busy = false;
  bool is_asleep = false;
  // Whether the window of steps whose ops are recorded has not begun.
  bool is_waiting = false;
  // Whether every op goes through Python, because an observer examines it or its values are kept.
  bool asks_python = false;
  // How many compiled graphs are running, one inside the other.
  int64_t graph_depth = 0;
  PyThreadState* python_thread = nullptr;  // The state of its thread, once attached.
  ForwardLinks links;

  void begin(std::shared_ptr<Stream> stream_, int32_t number, const py::buffer& place, const py::buffer& process, py::list calls,
             py::object sites, py::object edges, bool paranoid, std::shared_ptr<Stream> main) {
    stream = std::move(stream_);
    number_ = number;
    place_ = std::make_unique<Place>(place, process);
    calls_ = std::move(calls);
    sites_ = std::move(sites);
    edges_ = std::move(edges);
    paranoid_ = paranoid;
    main_ = std::move(main);
    links = ForwardLinks();
    seen_calls_.clear();
    known_modules_.clear();
    call_type_ = py::module_::import("determinism.frameworks.torch.modules").attr("Call");
    frame_of_ = Slot(call_type_, "frame");
    outside_of_ = Slot(call_type_, "outside");
    module_of_ = Slot(call_type_, "module");
    link_of_ = Slot(call_type_, "link");
    token_of_ = Slot(call_type_, "token");
  }

  // Releases all Python objects.
  void close() {
    is_active = is_asleep = false;
    place_.reset();
    sites_ = edges_ = py::none();
    calls_ = py::list();
    seen_calls_.clear();
    known_modules_.clear();
    main_.reset();
    stream.reset();
  }

  std::shared_ptr<Stream> stream;

  // Adds a tensor to the inputs of a record. The caller makes the digests that take long. Returns whether it fills its storage.
  template <class Context>
  bool look_at(Context& context, const at::Tensor& tensor, int8_t access);

  int32_t step() const { return place_->step(); }

  int32_t stack();
  void place(int8_t& phase, Link& link);
  // `looked` has the inputs; `pending` has the pending digests of the outputs.
  template <class Looked>
  int64_t append(int8_t role, int32_t op, int32_t arguments, Looked& looked, const c10::SmallVectorImpl<Output>& outputs, Pending& pending,
                 c10::ArrayRef<Digest> generators);
  // Appends a record that belongs to no phase of a step and wrote nothing.
  template <class Looked>
  int64_t append_outside(int8_t role, int32_t op, int32_t arguments, Looked& looked, c10::ArrayRef<Digest> generators) {
    const int8_t phase = place_->phase();
    place_->set_phase(OTHER);
    const auto put_back = c10::make_scope_exit([&] { place_->set_phase(phase); });
    Pending none;
    return append(role, op, arguments, looked, c10::SmallVector<Output, 1>(), none, generators);
  }
  void link_view();
  void wrote(const std::vector<StorageState*>& states, int64_t record, bool is_unwritten);
  void enter(PyObject* module);
  void leave(PyObject* module);
  bool must_tell_of_leaf(const at::Tensor& tensor, StorageState& state);
  bool must_look_for_update() const;
  Digest state_of(at::Generator& generator);

 private:
  // The maximum number of user frames in a stack, as `sites._MAX_FRAMES`.
  static constexpr int MOST_FRAMES = 48;
  static constexpr int USER = 2;
  static constexpr int8_t INIT = 0, FORWARD = 2, BACKWARD = 3, OPTIMIZER = 4, OTHER = 7;

  void see_calls();
  int owner_of(PyObject* code, const py::object& frame);
  bool has_user(py::object frame);
  Digest instructions(py::object frame, size_t waiting);
  int64_t outside(size_t call);

  int32_t number_ = 0;
  std::unique_ptr<Place> place_;
  py::object sites_, edges_;
  py::list calls_{0};
  bool paranoid_ = false;
  std::shared_ptr<Stream> main_;  // The main thread's stream, if this recorder is of another thread.
  std::vector<Call> seen_calls_;
  Table<std::pair<PyObject*, PyObject*>, KnownModule, PairHash> known_modules_;
  py::object call_type_;  // `modules.Call`, and its slots.
  Slot frame_of_, outside_of_, module_of_, link_of_, token_of_;
  GeneratorState generator_state_;
};

// Updates `seen_calls_` from Python's list; only calls made since the last record are looked at.
void Recorder::see_calls() {
  const size_t count = PyList_GET_SIZE(calls_.ptr());
  if (seen_calls_.size() > count) seen_calls_.resize(count);
  size_t same = seen_calls_.size();
  while (same > 0 && seen_calls_[same - 1].token.ptr() != token_of_.of(PyList_GET_ITEM(calls_.ptr(), same - 1))) --same;
  seen_calls_.resize(same);
  for (size_t at = same; at < count; ++at) {
    PyObject* call = PyList_GET_ITEM(calls_.ptr(), at);
    seen_calls_.push_back({py::reinterpret_borrow<py::object>(token_of_.of(call)), frame_of_.of(call),
                           static_cast<int32_t>(integer(link_of_.of(call), names().module))});
  }
}

// Notes a module call from the current Python frame, which waits until it returns; does the same as `modules.ModulePaths.enter`, which
// is called once for each module.
void Recorder::enter(PyObject* module) {
  static constexpr size_t MOST_MODULES = 20000;
  PyObject* calls = calls_.ptr();
  PyObject* frame = reinterpret_cast<PyObject*>(PyEval_GetFrame());
  if (frame == nullptr) throw std::runtime_error("a module is called from no frame");
  const bool is_outermost = PyList_GET_SIZE(calls) == 0;
  if (is_outermost) place_->set_phase(FORWARD);
  const py::object outermost = py::reinterpret_borrow<py::object>(is_outermost ? module : module_of_.of(PyList_GET_ITEM(calls, 0)));
  const std::pair<PyObject*, PyObject*> key{outermost.ptr(), module};
  const auto found = known_modules_.find(key);
  if (found == known_modules_.end() || referent(found->second.outermost) != key.first || referent(found->second.module) != key.second) {
    py::handle(owner).attr("modules").attr("enter")(py::handle(module), py::handle(frame));
    const Py_ssize_t count = PyList_GET_SIZE(calls);
    if (count == 0) return;
    const py::object link = py::reinterpret_borrow<py::object>(link_of_.of(PyList_GET_ITEM(calls, count - 1)));
    const auto weakly = [](PyObject* object) {
      PyObject* reference = PyWeakref_NewRef(object, nullptr);
      if (reference == nullptr) throw py::error_already_set();
      return py::reinterpret_steal<py::object>(reference);
    };
    if (known_modules_.size() >= MOST_MODULES) known_modules_.clear();
    known_modules_[key] = KnownModule{weakly(key.first), weakly(key.second), link};
    return;
  }
  PyTypeObject* type = reinterpret_cast<PyTypeObject*>(call_type_.ptr());
  const py::object link = found->second.link;
  const py::object call = py::reinterpret_steal<py::object>(type->tp_alloc(type, 0));
  const py::object token = py::reinterpret_steal<py::object>(PyBaseObject_Type.tp_alloc(&PyBaseObject_Type, 0));
  if (!call || !token) throw py::error_already_set();
  frame_of_.set(call.ptr(), frame);
  outside_of_.set(call.ptr(), Py_None);
  module_of_.set(call.ptr(), module);
  link_of_.set(call.ptr(), link.ptr());
  token_of_.set(call.ptr(), token.ptr());
  if (PyList_Append(calls, call.ptr()) != 0) throw py::error_already_set();
}

// Notes that a module returned or raised; does the same as `modules.ModulePaths.leave`, which is called if another module was called last.
void Recorder::leave(PyObject* module) {
  PyObject* calls = calls_.ptr();
  const Py_ssize_t count = PyList_GET_SIZE(calls);
  if (count == 0) return;
  if (module_of_.of(PyList_GET_ITEM(calls, count - 1)) != module) {
    py::handle(owner).attr("modules").attr("leave")(py::handle(module));
  } else if (PyList_SetSlice(calls, count - 1, count, nullptr) != 0) {
    throw py::error_already_set();
  }
}

// The owner of a frame's code.
int Recorder::owner_of(PyObject* code, const py::object& frame) {
  auto found = stream->owners.find(code);
  if (found == stream->owners.end()) {
    const int owner_of_code = sites_.attr("_classify")(frame).cast<int>();
    found = stream->owners.emplace(code, owner_of_code).first;
  }
  return found->second;
}

PyObject* code_of(const py::object& frame) {
  PyCodeObject* code = PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.ptr()));
  Py_DECREF(code);  // The frame keeps it alive.
  return reinterpret_cast<PyObject*>(code);
}

py::object caller_of(const py::object& frame) {
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
}

bool Recorder::has_user(py::object frame) {
  for (; frame.ptr() != nullptr; frame = caller_of(frame))
    if (owner_of(code_of(frame), frame) == USER) return true;
  return false;
}

// A key of the code and instruction of each non-foreign frame, out to an active call, whose number follows.
Digest Recorder::instructions(py::object frame, size_t waiting) {
  Words words;
  const PyObject* innermost = waiting > 0 ? seen_calls_[waiting - 1].frame : nullptr;
  int left = MOST_FRAMES;
  while (frame.ptr() != nullptr) {
    // While Python classified a frame, another thread that shares this recorder may have changed the calls.
    if (frame.ptr() == innermost && waiting <= seen_calls_.size() && seen_calls_[waiting - 1].frame == innermost) {
      words.add(~static_cast<uint64_t>(outside(waiting - 1)));
      break;
    }
    PyObject* code = code_of(frame);
    const int owner_of_code = owner_of(code, frame);
    if (owner_of_code != 0) {
      words.add(reinterpret_cast<uintptr_t>(code));
      words.add(static_cast<uint64_t>(PyFrame_GetLasti(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
      if (owner_of_code == USER && --left == 0) break;
    }
    if (frame.ptr() == stream->outermost) break;
    frame = caller_of(frame);
  }
  return words.key();
}

int64_t Recorder::outside(size_t call) {
  if (seen_calls_[call].outside < 0) {
    const Digest key = instructions(py::reinterpret_borrow<py::object>(seen_calls_[call].frame), call);
    seen_calls_[call].outside = stream->outsides.emplace(key, static_cast<int64_t>(stream->outsides.size())).first->second;
  }
  return seen_calls_[call].outside;
}

// Whether a Python thread has not ended. Requires the GIL.
bool is_alive(PyThreadState* thread) {
  PyThreadState* known = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  while (known != nullptr && known != thread) known = PyThreadState_Next(known);
  return known != nullptr;
}

// Requires `see_calls` before, like `place`. A thread that works for another one has the other's stack, unless it runs user code; see
// `SiteTable.stack_of_helper`.
int32_t Recorder::stack() {
  // PyEval_GetFrame returns a borrowed reference to a frame object that it may just have made.
  py::object frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  bool has_calls = true;
  if (!thread_state.is_own) {
    has_calls = !has_user(frame);
    if (has_calls)
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(is_alive(python_thread) ? PyThreadState_GetFrame(python_thread) : nullptr));
  }
  const Digest key = instructions(frame, has_calls ? seen_calls_.size() : 0);
  auto found = stream->stacks.find(key);
  if (found != stream->stacks.end()) return found->second;
  const py::object python_frame = frame.ptr() == nullptr ? py::none() : frame;
  const int32_t number = (has_calls ? sites_.attr("stack")(python_frame, calls_) : sites_.attr("stack")(python_frame)).cast<int32_t>();
  stream->stacks.emplace(key, number);
  return number;
}

void Recorder::place(int8_t& phase, Link& link) {
  const auto node = torch::autograd::get_current_node();
  if (node) {
    phase = BACKWARD;
    link = links.of(static_cast<int64_t>(node->sequence_nr()));
    return;
  }
  if (!seen_calls_.empty()) {
    phase = FORWARD;
    link = Link{-1, -1, seen_calls_.back().module};
    return;
  }
  link = Link{};
  phase = place_->optimizer_depth() != 0 ? OPTIMIZER : place_->phase();
}

template <class Looked>
int64_t Recorder::append(int8_t role, int32_t op, int32_t arguments, Looked& looked, const c10::SmallVectorImpl<Output>& outputs, Pending& pending,
                         c10::ArrayRef<Digest> generators) {
  ThreadState& thread = thread_state;
  if (!thread.is_own && thread.number < 0) thread.number = py::handle(owner).attr("native_helper")().template cast<int32_t>();
  see_calls();
  int8_t phase;
  Link link;
  place(phase, link);
  const int32_t in_stack = stack();
  const Cells cells{thread.is_own ? number_ : thread.number, place_->step(), phase, role, op, link.module, in_stack, link.record, link.stack, arguments};
  int64_t record = stream->append(cells, looked, outputs, pending, generators);
  if (record < 0) {
    const py::object& type = stream->pending_type();
    // No room is left, or the rows are not written natively now.
    py::list inputs, read, made, states;
    for (const InputEdge& edge : looked.edges) {
      inputs.append(edge.record);
      inputs.append(edge.output);
      inputs.append(edge.access);
      inputs.append(edge.layout);
    }
    for (size_t at = 0; at < looked.digests.size(); ++at) {
      read.append(looked.digests[at].position);
      read.append(looked.pending.of(at, looked.digests[at].digest, type));
    }
    for (size_t at = 0; at < outputs.size(); ++at) {
      made.append(outputs[at].layout);
      made.append(pending.of(at, outputs[at].digest, type));
    }
    for (const Digest& generator : generators) states.append(as_bytes(generator));
    const py::tuple row = py::make_tuple(cells.thread, cells.step, cells.phase, cells.role, cells.op, cells.module, cells.stack,
                                         cells.forward, cells.forward_stack, cells.arguments);
    record = stream->python().attr("writer").attr("append")(row, inputs, read, made, states).template cast<int64_t>();
  }
  if (!thread.is_own) return record;
  const int64_t sequence = static_cast<int64_t>(at::sequence_number::peek());
  if (sequence != links.last) links.add(sequence, Link{record, in_stack, link.module});
  return record;
}

void Recorder::link_view() {
  const int64_t sequence = static_cast<int64_t>(at::sequence_number::peek());
  if (sequence == links.last) return;
  see_calls();
  const int32_t in_stack = stack();
  links.add(sequence, Link{-1, in_stack, seen_calls_.empty() ? -1 : seen_calls_.back().module});
}

void Recorder::wrote(const std::vector<StorageState*>& states, int64_t record, bool is_unwritten) {
  for (size_t position = 0; position < states.size(); ++position) {
    StorageState* state = states[position];
    if (state == nullptr) continue;
    state->record = record;
    state->is_unwritten = is_unwritten;
    state->output = static_cast<int32_t>(position);
    if (!state->lifted.is_none()) state->lifted = py::none();
    if (main_ != nullptr) {
      ++state->writes;
      state->writer = edges_;
      main_->storages.written_elsewhere(state->key);
    }
  }
}

// Whether Python must be told that a leaf was read: a leaf that is not a parameter is kept, the first one ends a phase, and one that
// the program updated itself ends a step.
bool Recorder::must_tell_of_leaf(const at::Tensor& tensor, StorageState& state) {
  if (!tensor.requires_grad() || !c10::GradMode::is_enabled() || !tensor.is_leaf()) return false;
  if (place_->phase() == INIT || place_->is_update(state.record)) return true;
  const auto* impl = tensor.unsafeGetTensorImpl();
  return !(state.parameter.has_value() && state.parameter->_unsafe_get_target() == impl && !state.parameter->expired());
}

// Whether Python must check, at the call of an outermost module, for an update by the program itself.
bool Recorder::must_look_for_update() const {
  return place_->awaits_update() && PyList_GET_SIZE(calls_.ptr()) == 0 && c10::GradMode::is_enabled();
}

// Digests a tensor's elements, as `tensor_bytes.digest_tensor` does.
Digest digest_tensor(const at::Tensor& tensor) {
  const size_t length = tensor.nbytes();
  if (length == 0) return digest_of("", 0);
  const size_t storage_bytes = tensor.storage().nbytes();
  if (!is_block(tensor)) {
    const IsolationGuard apart;
    const at::Tensor block = tensor.contiguous();
    return digest_of(block.const_data_ptr(), length);
  }
  if (storage_bytes < length)
    throw std::runtime_error("a tensor of " + std::to_string(length) + " bytes lies in a storage of " + std::to_string(storage_bytes) + " bytes");
  return digest_of(tensor.const_data_ptr(), length);
}

// The digest of a generator's whole state; recomputed only if the generator has advanced.
//
// Requires the GIL: a forking thread holds it too, and a lock that another thread held then would never be released in the child.
// While a drawing thread holds the lock, the GIL is released.
Digest Recorder::state_of(at::Generator& generator) {
  std::unique_lock<std::mutex> lock(generator.mutex(), std::try_to_lock);
  while (!lock.owns_lock()) {
    {
      const py::gil_scoped_release released;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    lock.try_lock();
  }
  GeneratorState& known = generator_state_;
  auto* impl = dynamic_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  GeneratorState now;
  if (impl != nullptr) {
    now.engine = impl->engine().data();
    now.next_float = impl->next_float_normal_sample();
    now.next_double = impl->next_double_normal_sample();
    const auto& [then, engine] = std::tie(known.engine, now.engine);
    if (known.generator == impl && then.seed_ == engine.seed_ && then.left_ == engine.left_ && then.seeded_ == engine.seeded_ &&
        then.next_ == engine.next_ && then.state_ == engine.state_ && known.next_float == now.next_float && known.next_double == now.next_double)
      return known.digest;
  }
  const DispatchGuard plain;
  now.generator = generator.unsafeGetGeneratorImpl();
  now.seed = seed_of(generator);
  if (now.seed.has_value() && known.generator == now.generator && known.seed == now.seed) return known.digest;
  const at::Tensor state = generator.get_state();
  lock.unlock();
  now.digest = digest_tensor(state);
  known = now;
  return known.digest;
}

template <class Context>
bool Recorder::look_at(Context& context, const at::Tensor& tensor, int8_t access) {
  constexpr int8_t READ = 0;
  StorageState& state = stream->state(tensor);
  const Layout layout = stream->layout(tensor, state);
  bool always = paranoid_;
  bool is_watched = state.is_of_threads;
  if (main_ != nullptr) {
    const auto known = main_->storages.known(tensor);
    const bool is_own = state.writer.ptr() == edges_.ptr();
    if (!is_own || (known != nullptr && known->record != EXTERNAL)) state.record = EXTERNAL;
    always |= !is_own;
    is_watched |= !is_own;
    if constexpr (requires { context.used; })
      context.used.push_back({stream->storages.shared(tensor), state.writes, known, known == nullptr ? EXTERNAL : known->record});
  }
  int64_t record = state.record;
  if ((record == EXTERNAL || state.externally_writable || always) && access == READ) {
    const int32_t position = static_cast<int32_t>(context.edges.size());
    if constexpr (requires { context.watched; })
      if (is_watched && !is_on_device(tensor)) context.watched.emplace_back(context.digests.size(), tensor);
    if (!state.lifted.is_none() && is_on_device(tensor)) {
      const IsolationGuard apart;
      const py::tuple lifted = state.lifted;
      const py::tuple found = py::handle(owner).attr("native_lifted")(tensor_object(tensor), lifted[1]);
      if (lifted[0].template cast<int32_t>() == layout.number && found[1].template cast<bool>()) record = EXTERNAL;
      context.digests.push_back({position, from_bytes(found[0])});
    } else if (state.lifted.is_none()) {
      context.read.emplace_back(context.digests.size(), tensor);
      context.digests.push_back({position, Digest{}});
    } else {
      // The owner of the memory may have refilled it: then what is read did not pass through the op that lifted it.
      const Digest digest = digest_tensor(tensor);
      const py::tuple lifted = state.lifted;
      if (lifted[0].cast<int32_t>() == layout.number && from_bytes(lifted[1]) != digest) record = EXTERNAL;
      context.digests.push_back({position, digest});
    }
  }
  context.edges.push_back({record, state.output, access, layout.number});
  if (must_tell_of_leaf(tensor, state)) {
    const IsolationGuard apart;
    const bool is_parameter = py::handle(owner).attr("native_leaf_read")(tensor_object(tensor)).template cast<bool>();
    if (is_parameter)
      state.parameter.emplace(c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(tensor.getIntrusivePtr()));
  }
  return layout.fills_storage;
}

// Requests digests of those inputs that are on devices.
template <class Context>
void ask_devices(Context& context, Stream& stream) {
  c10::SmallVector<at::Tensor, 4> tensors;
  c10::SmallVector<size_t, 4> numbers;
  for (const auto& [at, tensor] : context.read)
    if (is_on_device(tensor)) {
      tensors.push_back(tensor);
      numbers.push_back(at);
    }
  if (!tensors.empty())
    stream.digest(tensors, numbers, context.pending, [&](size_t number, const Digest& digest) { context.digests[numbers[number]].digest = digest; });
}

// The contents of tensors, before something other than an op reads them.
template <unsigned Count>
struct Looked {
  c10::SmallVector<InputEdge, Count> edges;
  c10::SmallVector<InputDigest, Count> digests;
  c10::SmallVector<std::pair<size_t, at::Tensor>, Count> read;
  Pending pending;

  void digest(Stream& stream) {
    ask_devices(*this, stream);
    for (const auto& [at, tensor] : read)
      if (!is_on_device(tensor)) digests[at].digest = digest_tensor(tensor);
    read.clear();
  }
};

// Whether all are plain tensors and parameters, not of subclasses, in unshared memory.
bool are_own(const py::list& tensors) {
  for (const py::handle tensor : tensors) {
    if (!THPVariable_CheckExact(tensor.ptr())) return false;
    const at::Tensor& value = THPVariable_Unpack(tensor.ptr());
    // Device memory counts as unshared, since there is no way to know.
    if (!is_simple(value) || !(is_allocated(value.storage()) || !value.device().is_cpu())) return false;
  }
  return true;
}

// Looks at the tensors of a list from a position up to the first one that is not ordinary: returns its position, and the inputs.
py::tuple look_at_each(Recorder& recorder, const py::list& tensors, size_t from, size_t known_inputs) {
  Looked<64> looked;
  if (recorder.stream == nullptr) throw std::runtime_error("the recorder has no stream: it has not begun, or has ended");
  const DispatchGuard plain;
  for (; from < tensors.size(); ++from) {
    const at::Tensor& tensor = unpacked(tensors[from]);
    if (!is_simple(tensor)) break;
    recorder.look_at(looked, tensor, 0);
  }
  looked.digest(*recorder.stream);
  py::list edges(4 * looked.edges.size());
  size_t cell = 0;
  for (const InputEdge& edge : looked.edges)
    for (const int64_t number : {edge.record, int64_t{edge.output}, int64_t{edge.access}, int64_t{edge.layout}}) edges[cell++] = number;
  py::list digests;
  for (size_t at = 0; at < looked.digests.size(); ++at) {
    digests.append(known_inputs + looked.digests[at].position);
    digests.append(looked.pending.of(at, looked.digests[at].digest, recorder.stream->pending_type()));
  }
  return py::make_tuple(from, edges, py::tuple(digests));
}

}  // namespace
}  // namespace determinism
