// Records ops below Python: an observer that PyTorch calls at the first dispatch of every op, before autograd, and when it
// has run. The ordinary op, on strided tensors, is recorded here from its inputs to its row in the spool. What is rare
// is handed to the Python recorder, whole. See docs/recorder.md.

#include "tables.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Generator.h>
#if __has_include(<torch/csrc/autograd/node.h>)
#include <torch/csrc/autograd/node.h>
#else
#include <torch/csrc/autograd/function.h>
#endif

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include <torch/csrc/Device.h>

#include <structmember.h>

#include <chrono>
#include <exception>
#include <thread>

#include <unistd.h>

namespace torch::jit {
// Declared here because its header takes most of the time that compiling this takes.
TORCH_PYTHON_API pybind11::object toPyObject(c10::IValue value);
}  // namespace torch::jit

namespace torch::utils {
PyObject* getTHPMemoryFormat(at::MemoryFormat format);
}  // namespace torch::utils

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

using c10::DispatchKey;
using c10::DispatchKeySet;

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

PyObject* set_eval_frame = nullptr;  // Dynamo's function; found when the observer is installed.
PyObject* unread_in = nullptr;  // The code whose reads of values are not recorded: `recorder.UNREAD_IN`.

// Holds Python, with its error of the moment put aside. Dynamo, which compiles every frame of Python that begins while it is
// switched on, is off meanwhile: the frames of ours are not the program's.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {
    PyErr_Fetch(&type_, &value_, &traceback_);
    if (_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) != _PyEval_EvalFrameDefault) {
      compiler_ = set_compiler(Py_None);
      if (compiler_ == nullptr) PyErr_Clear();
    }
  }
  ~Gil() {
    if (compiler_ != nullptr) {
      PyErr_Clear();
      Py_XDECREF(set_compiler(compiler_));
      Py_DECREF(compiler_);
    }
    PyErr_Restore(type_, value_, traceback_);
    PyGILState_Release(state_);
  }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  // What Dynamo calls for a frame, from now on; gives what it called before.
  static PyObject* set_compiler(PyObject* callback) {
    return set_eval_frame == nullptr ? nullptr : PyObject_CallOneArg(set_eval_frame, callback);
  }

  PyGILState_STATE state_;
  PyObject *type_, *value_, *traceback_;
  PyObject* compiler_ = nullptr;
};

// Names of attributes and methods that are looked up for each record.
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

// Where objects of a class with `__slots__` keep an attribute; quicker than to look it up.
class Slot {
 public:
  Slot() = default;
  Slot(const py::object& type, const char* name) {
    const py::object descriptor = type.attr(name);
    if (Py_TYPE(descriptor.ptr()) != &PyMemberDescr_Type) throw std::runtime_error(std::string("no slot holds ") + name);
    offset_ = reinterpret_cast<PyMemberDescrObject*>(descriptor.ptr())->d_member->offset;
  }

  // What an object has; borrowed. Objects of these classes have all that they have from the start.
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

// A key of numbers that is quick to make.
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

// Counts the ops that were taken away: of a library of the program that ended, or defines them anew.
std::atomic<uint64_t> num_removed{0};

class RemovedOps final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle&) override { ++num_removed; }
};

// The ops that a thread met.
struct Known {
  Table<const void*, Op*> ops;
  uint64_t removed = 0;
};
Known& known_here() {
  // Plain numbers and pointers need no function of the compiler's that makes them at first use, as what has a destructor does.
  thread_local Known* known = nullptr;
  thread_local bool has_ended = false;
  if (known == nullptr) {
    static thread_local struct Owner {
      Known* own = new Known();
      ~Owner() {
        delete own;
        known = nullptr;
        has_ended = true;
      }
    } owner;
    // What ends with the thread may run ops when the owner is gone already.
    known = has_ended ? new Known() : owner.own;
  }
  return *known;
}

// All ops that were met. An op is known by where PyTorch keeps its name, which is one place for each overload as long as no op
// is removed. After that each is looked for anew.
class Ops {
 public:
  Op* of(const at::RecordFunction& function) {
    const char* name = function.name();
    Known& known = known_here();
    const uint64_t removed = num_removed;
    if (removed != known.removed) {
      known.ops.clear();
      known.removed = removed;
    }
    auto found = known.ops.find(name);
    if (found != known.ops.end() && found->second->name == name) return found->second;
    // What is no op has no namespace in its name, or is not known to the dispatcher.
    if (std::strstr(name, "::") == nullptr) return nullptr;
    std::optional<c10::OperatorName> qualified = function.operator_name();
    if (!qualified.has_value()) return nullptr;
    Op* op = add(*qualified, removed);
    known.ops[name] = op;
    return op;
  }

 private:
  // The GIL is what protects the table: a lock of our own could be held by another thread at a fork, for ever.
  Op* add(const c10::OperatorName& qualified, uint64_t removed) {
    const Gil gil;
    Op*& place = ops_[qualified.name + "." + qualified.overload_name];
    if (place != nullptr && place->num_removed == removed) return place;
    // Whatever runs now, and numbers by it, keep the one that was.
    all_.push_back(std::make_unique<Op>());
    place = all_.back().get();
    place->id = all_.size() - 1;
    place->num_removed = removed;
    place->name = qualified.name;
    place->overload = qualified.overload_name;
    place->handle = c10::Dispatcher::singleton().findSchema(qualified);
    if (place->handle.has_value()) {
      const c10::OperatorHandle& handle = *place->handle;
      place->num_arguments = handle.schema().arguments().size();
      place->num_results = handle.schema().returns().size();
      place->is_composite = handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
      place->has_autograd = handle.hasKernelForDispatchKey(DispatchKey::Autograd) ||
                            handle.hasKernelForDispatchKey(DispatchKey::AutogradCPU) ||
                            handle.hasKernelForDispatchKey(DispatchKey::AutogradCUDA);
      place->has_autocast = handle.hasKernelForDispatchKey(DispatchKey::AutocastCPU);
      place->has_autocast_on_gpu = handle.hasKernelForDispatchKey(DispatchKey::AutocastCUDA);
      place->non_blocking_at = handle.schema().argumentIndexWithName("non_blocking").value_or(-1);
      place->has_vmap_mode = handle.hasKernelForDispatchKey(DispatchKey::FuncTorchVmapMode);
    }
    return place;
  }

  std::unordered_map<std::string, Op*> ops_;
  std::vector<std::unique_ptr<Op>> all_;
};
Ops& ops() {
  static Ops made;
  return made;
}

class Recorder;
struct Context;

struct ThreadState {
  Recorder* recorder = nullptr;
  bool is_own = false;
  bool was_asked = false;
  int inside = 0;  // How deep it is in something of ours, whose ops are not the program's.
  uint64_t generation = 0;
  int32_t number = -1;  // Of a thread that works for another one: what its records say.
  Context* innermost = nullptr;
};
thread_local ThreadState thread_state;

// Python that we run may collect garbage, and with it run ops.
struct Inside {
  Inside() { ++thread_state.inside; }
  ~Inside() { --thread_state.inside; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

// What the program has switched on does not reach the ops of ours: they run below autograd, autocast, modes and transforms.
class Plain {
 public:
  Plain() : guard_(included(), excluded()), functions_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~Plain() { at::impl::PythonTorchFunctionTLS::set_disabled_state(functions_); }
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;

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
  Inside inside_;
};

// Around ops that we call, and Python that may call some: neither what the program has switched on nor a profiler sees them. PyTorch
// makes its lists of observers anew for this, which takes as long as a record, so the ordinary record does without.
//
// They lie behind a lock of PyTorch's, which a child would wait for if another thread held it at the fork. Who forks holds the GIL,
// so whoever takes the lock for us does, too.
class Apart {
 public:
  Apart() {
    const Gil gil;
    guard_.emplace();
  }
  ~Apart() {
    const Gil gil;
    guard_.reset();
  }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

 private:
  const Plain plain_;
  std::optional<at::DisableRecordFunctionGuard> guard_;
};

// A thread reads the list of observers at its first op, and anew when the list has changed, behind the same lock and without the
// GIL. It does so here and now instead.
void read_observers() { at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION); }

// Whether the elements are one block of bytes, from the tensor's address on.
bool is_block(const at::Tensor& tensor) {
  return tensor.is_contiguous() || (tensor.storage().nbytes() == tensor.nbytes() && tensor.is_non_overlapping_and_dense());
}

// Queues digests on a GPU as `device_digests.CudaDigests` does, through the functions of NVIDIA's driver. All but calling these is done
// with the GIL held.
class DeviceQueue {
 public:
  DeviceQueue(const py::object& ring, const py::dict& facts, const py::buffer& captures)
      : ring_(ring.ptr()), cursor_(py::buffer(ring.attr("cursor")).request()), num_held_(py::buffer(ring.attr("lock").attr("num_held")).request()),
        captures_(captures.request()), entries_(ring.attr("entries").cast<int64_t>()), single_(facts["single"]), several_(facts["several"]) {
    const auto number = [&](const char* name) { return facts[name].cast<int64_t>(); };
    device_ = c10::Device(facts["device"].cast<std::string>());
    keys_ = number("keys");
    slots_ = number("slots");
    table_ = number("table");
    host_table_ = reinterpret_cast<int64_t*>(number("host_table"));
    columns_ = number("columns");
    tile_bytes_ = number("tile_bytes");
    programs_ = number("programs");
    fewest_programs_ = number("fewest_programs");
    most_copied_ = static_cast<size_t>(number("most_copied"));
    stream_of_ = facts["stream_of"];
    event_of_stream_ = facts["event_of_stream"];
    if (columns_ < 5) throw std::runtime_error("the table of blocks has too few columns");
    const auto function = [&](const char* name, auto& found) { found = reinterpret_cast<std::decay_t<decltype(found)>>(facts[name].cast<uintptr_t>()); };
    function("cuLaunchKernel", launch_kernel_);
    function("cuMemcpyHtoDAsync_v2", copy_);
    function("cuEventRecord", record_event_);
    function("cuStreamIsCapturing", is_capturing_);
  }

  // Queues the digesting of tensors of the device, as they are where the stream that is used now stands. Gives the position of the first in
  // a delivery; -1 where Python must do so.
  int32_t ask(c10::ArrayRef<at::Tensor> tensors, py::object& delivery) {
    const int64_t count = static_cast<int64_t>(tensors.size());
    if (count > entries_ || cells(captures_)[0] != 0) return -1;
    for (const at::Tensor& tensor : tensors)
      if (tensor.device() != device_) return -1;
    if (c10::impl::VirtualGuardImpl(device_.type()).getDevice() != device_) return -1;
    const py::object stream_number = stream_of_(device_.index());
    void* stream = reinterpret_cast<void*>(stream_number.cast<uintptr_t>());
    int capture = 0;
    if (is_capturing_(stream, &capture) != 0 || capture != 0) return -1;
    c10::SmallVector<at::Tensor, 4> copies;
    c10::SmallVector<Block, 4> blocks;
    if (!find_blocks(tensors, copies, blocks)) return -1;
    const auto known_event = events_.find(stream);
    void* const event = known_event != events_.end() ? known_event->second : reinterpret_cast<void*>(event_of_stream_().cast<uintptr_t>());
    if (known_event == events_.end()) events_[stream] = event;
    if (cells(cursor_)[1] + count > entries_) {
      const Apart apart;
      py::handle(ring_).attr("make_room")(count);
    }
    if (known_batch_ != cells(cursor_)[2]) {
      const int64_t number = cells(cursor_)[2];
      delivery_ = py::object(py::handle(ring_).attr("batch")).ptr();
      known_batch_ = number;
    }
    // Nobody else can take entries now: who would holds the ring's lock, or gets the GIL.
    if (cells(num_held_)[0] != 0 || cells(cursor_)[1] + count > entries_ || known_batch_ != cells(cursor_)[2]) return -1;
    const int64_t first = cells(cursor_)[0] + cells(cursor_)[1];
    const int64_t position = cells(cursor_)[1];
    cells(cursor_)[1] += count;
    py::object batch = py::reinterpret_borrow<py::object>(delivery_);
    // The driver waits where much is queued already; meanwhile other threads run, and no batch is fetched: see `Ring.cursor`.
    std::atomic_ref<int64_t> num_launching(cells(cursor_)[3]);
    ++num_launching;
    bool is_queued = false;
    {
      const py::gil_scoped_release released;
      is_queued = (count == 1 ? launch_single(blocks[0], first, stream) : launch_several(blocks, first, stream)) && record_event_(event, stream) == 0;
      --num_launching;
    }
    if (!is_queued) return -1;
    delivery = std::move(batch);
    return static_cast<int32_t>(position);
  }

 private:
  struct Block {
    int64_t address, length;
  };

  // What a kernel is launched with, see `CudaDigests.launched_with`.
  struct Kernel {
    explicit Kernel(const py::object& facts) {
      const py::tuple numbers = facts;
      function = reinterpret_cast<void*>(numbers[0].cast<uintptr_t>());
      threads = numbers[1].cast<unsigned>();
      shared_bytes = numbers[2].cast<unsigned>();
      num_unused = numbers[3].cast<int>();
      if (num_unused < 0 || num_unused > MOST_UNUSED) throw std::runtime_error("the kernel has parameters that are not known");
    }
    static constexpr int MOST_UNUSED = 4;
    void* function;
    unsigned threads, shared_bytes;
    int num_unused;
  };

  static int64_t* cells(const py::buffer_info& buffer) { return static_cast<int64_t*>(buffer.ptr); }

  // The bytes of tensors, copied where they do not lie side by side; false if they are too large for that.
  bool find_blocks(c10::ArrayRef<at::Tensor> tensors, c10::SmallVectorImpl<at::Tensor>& copies, c10::SmallVectorImpl<Block>& blocks) const {
    size_t copied = 0;
    for (const at::Tensor& tensor : tensors) {
      const size_t length = tensor.nbytes();
      if (length == 0) return false;
      if (is_block(tensor)) {
        // Python has words for memory that was taken away.
        if (tensor.storage().nbytes() < length + static_cast<size_t>(tensor.storage_offset()) * tensor.element_size()) return false;
        blocks.push_back({reinterpret_cast<int64_t>(tensor.const_data_ptr()), static_cast<int64_t>(length)});
        continue;
      }
      if ((copied += length) > most_copied_) return false;
      const Apart apart;
      copies.push_back(tensor.contiguous());
      blocks.push_back({reinterpret_cast<int64_t>(copies.back().const_data_ptr()), static_cast<int64_t>(length)});
    }
    return true;
  }

  int64_t num_tiles(const Block& block) const { return (block.length + tile_bytes_ - 1) / tile_bytes_; }

  bool launch(const Kernel& kernel, int64_t width, int64_t height, void* stream, void** arguments, size_t count) {
    std::array<void*, 7 + Kernel::MOST_UNUSED> all{};
    void* none = nullptr;
    std::copy(arguments, arguments + count, all.begin());
    for (int unused = 0; unused < kernel.num_unused; ++unused) all[count + static_cast<size_t>(unused)] = &none;
    return launch_kernel_(kernel.function, static_cast<unsigned>(width), static_cast<unsigned>(height), 1, kernel.threads, 1, 1, kernel.shared_bytes, stream,
                          all.data(), nullptr) == 0;
  }

  bool launch_single(Block block, int64_t slot, void* stream) {
    int64_t first_tile = 0, total = block.length;
    std::array<void*, 7> arguments{&block.address, &block.length, &first_tile, &slot, &total, &keys_, &slots_};
    return launch(single_, std::min(num_tiles(block), std::max(fewest_programs_, programs_)), 1, stream, arguments.data(), arguments.size());
  }

  bool launch_several(const c10::SmallVectorImpl<Block>& blocks, int64_t first, void* stream) {
    const int64_t count = static_cast<int64_t>(blocks.size()), row_bytes = columns_ * static_cast<int64_t>(sizeof(int64_t));
    int64_t tiles = 0;
    for (int64_t at = 0; at < count; ++at) {
      const Block& block = blocks[static_cast<size_t>(at)];
      const int64_t row[5] = {block.address, block.length, 0, first + at, block.length};
      std::memcpy(host_table_ + (first + at) * columns_, row, sizeof row);
      tiles = std::max(tiles, num_tiles(block));
    }
    int64_t table = table_ + first * row_bytes;
    if (copy_(static_cast<unsigned long long>(table), host_table_ + first * columns_, static_cast<size_t>(count * row_bytes), stream) != 0) return false;
    std::array<void*, 3> arguments{&table, &keys_, &slots_};
    return launch(several_, count, std::min(tiles, std::max(fewest_programs_, programs_ / count)), stream, arguments.data(), arguments.size());
  }

  PyObject* const ring_;  // Which holds this.
  const py::buffer_info cursor_, num_held_, captures_;
  const int64_t entries_;
  const Kernel single_, several_;
  c10::Device device_{c10::kCUDA};
  int64_t keys_, slots_, table_, columns_, tile_bytes_, programs_, fewest_programs_;
  size_t most_copied_;
  int64_t* host_table_;
  py::object stream_of_, event_of_stream_;
  int64_t known_batch_ = -1;
  PyObject* delivery_ = nullptr;  // The batch of that number: the ring holds it as long as it is the one that is being filled.
  Table<void*, void*> events_;  // Of streams.
  int (*launch_kernel_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) = nullptr;
  int (*copy_)(unsigned long long, const void*, size_t, void*) = nullptr;
  int (*record_event_)(void*, void*) = nullptr;
  int (*is_capturing_)(void*, int*) = nullptr;
};

// One stream of records, with the numbers of the names in it.
class Stream {
 public:
  // Python is the `edges.Stream` of which this knows the numbers, and which holds it.
  explicit Stream(const py::object& python) : python_(python) {}

  // Has tensors on devices digested: what comes at once goes to `put` with the tensor's number, what comes later to `pending`, where the
  // tensors have the numbers `at`.
  template <class Put>
  void digest(c10::ArrayRef<at::Tensor> tensors, c10::ArrayRef<size_t> at, Pending& pending, Put put) {
    DeviceQueue* queue = queue_of(tensors[0].device());
    py::object delivery;
    const int32_t first = queue == nullptr ? -1 : asked(*queue, tensors, delivery);
    if (first >= 0) {
      for (size_t number = 0; number < tensors.size(); ++number) pending.add(at[number], delivery, first + static_cast<int32_t>(number));
      return;
    }
    py::list objects(tensors.size());
    for (size_t number = 0; number < tensors.size(); ++number) objects[number] = tensor_object(tensors[number]);
    const Apart apart;
    const py::list found = python().attr("digests").attr("of_each")(objects);
    for (size_t number = 0; number < tensors.size(); ++number) {
      const py::object digest = found[number];
      if (PyBytes_Check(digest.ptr())) put(number, from_bytes(digest));
      else pending.add(at[number], digest.attr("delivery"), digest.attr("position").template cast<int32_t>());
    }
  }

  // The record's number; -1 if it is for Python to append.
  template <class Looked>
  int64_t append(const Cells& cells, Looked& looked, const c10::SmallVectorImpl<Output>& outputs, Pending& pending, c10::ArrayRef<Digest> generators) {
    if (!rows.is_attached()) return -1;
    for (Pending* some : {&looked.pending, &pending})
      for (auto& digest : *some) see_places(digest.delivery);
    const bool is_locked = lock();
    int64_t record = -1;
    if (rows.is_attached() && find_places(looked.pending) && find_places(pending))
      record = rows.append(cells, looked.edges, looked.digests, looked.pending, outputs, pending, generators);
    if (is_locked) unlock();
    return record;
  }

  const py::object& pending_type() {
    if (!pending_type_) pending_type_ = py::module_::import("determinism.trace.spool").attr("PendingDigest");
    return pending_type_;
  }

  StorageTable storages;
  Rows rows;

  StorageState& state(const at::Tensor& tensor) {
    return storages.state(tensor, [&] {
      const Apart apart;
      return python().attr("storages").attr("is_shared")(tensor_object(tensor)).cast<bool>();
    });
  }

  Layout layout(const at::Tensor& tensor, const StorageState& state) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    Words words;
    words.add(static_cast<uint64_t>(c10::typeMetaToScalarType(impl->dtype())) | (state.is_shared ? 256u : 0u) |
              static_cast<uint64_t>(static_cast<uint8_t>(impl->device_type())) << 16 |
              static_cast<uint64_t>(static_cast<uint8_t>(impl->device().index())) << 24);
    const size_t storage_bytes = impl->unsafe_storage().nbytes();
    words.add(storage_bytes);
    words.add(static_cast<uint64_t>(impl->storage_offset()));
    for (int64_t size : impl->sizes()) words.add(static_cast<uint64_t>(size));
    for (int64_t stride : impl->strides()) words.add(static_cast<uint64_t>(stride));
    RecentLayout& recent = recent_layouts_[words.slot() % recent_layouts_.size()];
    if (words.are(recent.words)) return recent.layout;
    const Layout known = known_layout(tensor, words.key(), storage_bytes);
    recent.words.assign(words.begin(), words.end());
    return recent.layout = known;
  }

  int32_t op_number(const Op& op) {
    if (op.id >= numbers_.size()) numbers_.resize(op.id + 64, -1);
    int32_t& number = numbers_[op.id];
    if (number < 0) {
      const int32_t asked = python().attr("op_number")(py::handle(op.known).attr("name")).cast<int32_t>();
      numbers_[op.id] = asked;
      return asked;
    }
    return number;
  }

  ByDigest<int32_t>& arguments() {
    if (arguments_.size() >= MOST_KEYS) arguments_.clear();
    return arguments_;
  }

  // The number of the layout of a value that is no tensor.
  int32_t value_layout() {
    if (value_layout_ < 0) value_layout_ = python().attr("layouts").attr("value_number").cast<int32_t>();
    return value_layout_;
  }

  py::handle python() const { return python_; }

  void forget_devices() {
    queues_.clear();
    known_places_ = {};
  }

  // Keeps other threads from appending to the writer, until `unlock` if it gives true; meanwhile nothing may throw, or let go of the GIL.
  // Where nobody holds the writer's lock, nobody else can begin to append as long as the GIL is held.
  bool lock() {
    if (!num_held_) {
      lock_ = python().attr("writer").attr("lock");
      num_held_.emplace(py::buffer(lock_.attr("num_held")).request());
    }
    if (*static_cast<const int64_t*>(num_held_->ptr) == 0) return false;
    lock_.attr("acquire")();
    return true;
  }
  void unlock() { lock_.attr("release")(); }

  static py::object tensor_object(const at::Tensor& tensor) {
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  }

  PyObject* outermost = nullptr;  // The frame that stacks end with, which Python's table holds; null: they go on to the end.
  Table<PyObject*, int> owners;  // Of code objects, which Python's table keeps alive.
  ByDigest<int32_t> stacks;
  ByDigest<int64_t> outsides;

 private:
  Layout known_layout(const at::Tensor& tensor, const Digest& key, size_t storage_bytes) {
    auto found = layouts_.find(key);
    if (found != layouts_.end()) return found->second;
    const Apart apart;
    const py::object known = python().attr("storages").attr("look")(tensor_object(tensor));
    const Layout made{known[py::int_(1)].attr("number").cast<int32_t>(), tensor.nbytes() == storage_bytes};
    if (layouts_.size() >= MOST_KEYS) layouts_.clear();
    layouts_.emplace(key, made);
    return made;
  }

  struct RecentLayout {
    c10::SmallVector<uint64_t, 12> words;
    Layout layout{};
  };

  static constexpr size_t MOST_KEYS = 20000;

  // See `DeviceQueue::ask`. Where it fails, Python does it, and says what it failed at.
  static int32_t asked(DeviceQueue& queue, c10::ArrayRef<at::Tensor> tensors, py::object& delivery) {
    try {
      return queue.ask(tensors, delivery);
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;
    } catch (const std::exception&) {
    }
    return -1;
  }

  // What queues digests on a device; null where Python does.
  DeviceQueue* queue_of(const c10::Device& device) {
    const size_t index = device.has_index() ? static_cast<size_t>(device.index()) : 0;
    if (index < queues_.size() && queues_[index].is_known) return queues_[index].queue;
    if (index >= queues_.size()) queues_.resize(index + 1);
    const Apart apart;
    const py::object queue = python().attr("queue_of")(py::reinterpret_steal<py::object>(THPDevice_New(device)));
    if (queue.ptr() == Py_False) return nullptr;
    queues_[index] = {true, queue, queue.is_none() ? nullptr : queue.cast<DeviceQueue*>()};
    return queues_[index].queue;
  }

  // Knows where the digests of a delivery go, from now on until they are there.
  void see_places(const py::object& delivery) {
    if (places_of(delivery.ptr()) != nullptr) return;
    const py::object places = python().attr("writer").attr("digest_places")(delivery);
    if (places.is_none()) return;
    KnownPlaces& known = known_places_[next_places_++ % known_places_.size()];
    known.cells.emplace(py::buffer(places).request());
    known.delivery = delivery;
  }

  // Whether each has a place of its own.
  bool find_places(Pending& pending) {
    for (auto& digest : pending) {
      digest.places = places_of(digest.delivery.ptr());
      if (digest.places == nullptr || digest.places[digest.position] >= 0) return false;
    }
    return true;
  }

  int64_t* places_of(PyObject* delivery) {
    for (KnownPlaces& known : known_places_) {
      if (known.delivery.ptr() != delivery) continue;
      int64_t* cells = static_cast<int64_t*>(known.cells->ptr);
      // At last whether any may still be added.
      if (cells[known.cells->size - 1] != 0) return cells;
      known.delivery = py::object();
    }
    return nullptr;
  }

  struct KnownQueue {
    bool is_known = false;
    py::object held;
    DeviceQueue* queue = nullptr;
  };
  struct KnownPlaces {
    py::object delivery;
    std::optional<py::buffer_info> cells;
  };

  py::handle python_;
  std::vector<KnownQueue> queues_;  // By the device's index.
  std::array<KnownPlaces, 4> known_places_;
  size_t next_places_ = 0;
  py::object pending_type_;
  py::object lock_;  // That the writer holds while it appends.
  std::optional<py::buffer_info> num_held_;  // How often it is held.
  std::vector<int32_t> numbers_;
  int32_t value_layout_ = -1;
  ByDigest<Layout> layouts_;
  std::array<RecentLayout, 64> recent_layouts_;  // At the slots of their keys, which need no digest to be compared.
  ByDigest<int32_t> arguments_;
};

// A call of a module that the thread is in, as it was last seen in Python's list of them.
// It is known by its token: whoever holds the call itself would keep alive the module, and what its caller's frame holds.
struct Call {
  py::object token;
  PyObject* frame;  // Borrowed: it waits as long as the call is in the list.
  int32_t module;
  int64_t outside = -1;
};

// Where a thread of the program is: what `progress.Progress` writes down as its `place`.
class Place {
 public:
  // Of the thread itself, and of the main one, whose step it is in as long as its own is -1.
  Place(const py::buffer& own, const py::buffer& process) : own_(own.request()), process_(process.request()) {}

  int32_t step() const { return static_cast<int32_t>(at(own_, 0) < 0 ? at(process_, 0) : at(own_, 0)); }
  int8_t phase() const { return static_cast<int8_t>(at(own_, 1)); }
  void set_phase(int8_t phase) { static_cast<int64_t*>(own_.ptr)[1] = phase; }
  int64_t optimizer_depth() const { return at(own_, 2); }

 private:
  static int64_t at(const py::buffer_info& cells, size_t index) { return static_cast<const int64_t*>(cells.ptr)[index]; }

  py::buffer_info own_, process_;
};

// What a weak reference leads to, or null; borrowed.
PyObject* referent(const py::object& reference) {
  PyObject* object = PyWeakref_GetObject(reference.ptr());
  return object == Py_None ? nullptr : object;
}

// A module that is called below an outermost one, with what the ops of its calls are known by. Addresses are used again.
struct KnownModule {
  py::object outermost, module;  // Weak references.
  py::object link;
};
struct PairHash {
  size_t operator()(const std::pair<PyObject*, PyObject*>& pair) const {
    return reinterpret_cast<uintptr_t>(pair.first) * 31 ^ reinterpret_cast<uintptr_t>(pair.second);
  }
};

// The state of a generator as it was last digested.
struct GeneratorState {
  const at::GeneratorImpl* generator = nullptr;
  at::mt19937_data_pod engine{};
  std::optional<float> next_float;
  std::optional<double> next_double;
  std::optional<std::pair<uint64_t, uint64_t>> seed;  // And how much was drawn since, which is all that the state of a GPU's is.
  Digest digest{};
};

// None of other devices, and while a graph is captured.
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
  // Whether the window of steps of which ops are recorded has not begun.
  bool is_waiting = false;
  // Whether each op is to go through Python: something looks at it, or its values are kept.
  bool asks_python = false;
  PyThreadState* python_thread = nullptr;  // Of its thread, once that is attached.
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

  // Lets go of everything of Python's.
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

  // The input that a tensor is: added to what a record has read. Digests that take long are made by the caller.
  template <class Context>
  bool look_at(Context& context, const at::Tensor& tensor, int8_t access);

  int32_t stack();
  void place(int8_t& phase, Link& link);
  // Looked is what was read; `pending` are digests of outputs.
  template <class Looked>
  int64_t append(int8_t role, int32_t op, int32_t arguments, Looked& looked, const c10::SmallVectorImpl<Output>& outputs, Pending& pending,
                 c10::ArrayRef<Digest> generators);
  // What belongs to no phase of a step, and wrote nothing.
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
  Digest state_of(at::Generator& generator);

 private:
  // User frames that a stack holds at most, as `sites._MAX_FRAMES`.
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
  std::shared_ptr<Stream> main_;  // Of the main thread, where this is another one's.
  std::vector<Call> seen_calls_;
  Table<std::pair<PyObject*, PyObject*>, KnownModule, PairHash> known_modules_;
  py::object call_type_;  // `modules.Call`, and its slots.
  Slot frame_of_, outside_of_, module_of_, link_of_, token_of_;
  GeneratorState generator_state_;
};

// What the calls that Python knows of look like; only those that came since the last record are looked at.
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

// A module is called from the frame of Python that runs now, which waits until it returns; as `modules.ModulePaths.enter`, which is
// asked about each module once.
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

// A module returned or raised; as `modules.ModulePaths.leave`, which is asked where another one was called last.
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

// Whose the code of a frame is.
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
  Py_DECREF(code);  // The frame holds it.
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

// The code and instruction of each frame that is not foreign, out to a call that waits, whose number then follows.
Digest Recorder::instructions(py::object frame, size_t waiting) {
  Words words;
  const PyObject* innermost = waiting > 0 ? seen_calls_[waiting - 1].frame : nullptr;
  int left = MOST_FRAMES;
  while (frame.ptr() != nullptr) {
    // While Python was asked about a frame, a thread that shares this recorder may have seen other calls.
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

// Whether a thread of Python has not ended. With the GIL held.
bool is_alive(PyThreadState* thread) {
  PyThreadState* known = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  while (known != nullptr && known != thread) known = PyThreadState_Next(known);
  return known != nullptr;
}

// After `see_calls`, as `place`. That of a thread that works for another one is the other's, unless code of the user runs in it; see
// `SiteTable.stack_of_helper`.
int32_t Recorder::stack() {
  // A borrowed reference to a frame that is being made for Python at this moment.
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
    // No room is left, or another keeps the rows now.
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

// Whether Python must be told that a leaf was read: one that is no parameter is kept, and the first one ends a phase.
bool Recorder::must_tell_of_leaf(const at::Tensor& tensor, StorageState& state) {
  if (!tensor.requires_grad() || !c10::GradMode::is_enabled() || !tensor.is_leaf()) return false;
  if (place_->phase() == INIT) return true;
  const auto* impl = tensor.unsafeGetTensorImpl();
  return !(state.parameter.has_value() && state.parameter->_unsafe_get_target() == impl && !state.parameter->expired());
}

// Digest of the elements of a tensor, as `tensor_bytes.digest_tensor` gives it.
Digest digest_tensor(const at::Tensor& tensor) {
  const size_t length = tensor.nbytes();
  if (length == 0) return digest_of("", 0);
  const size_t storage_bytes = tensor.storage().nbytes();
  if (!is_block(tensor)) {
    const Apart apart;
    const at::Tensor block = tensor.contiguous();
    return digest_of(block.const_data_ptr(), length);
  }
  if (storage_bytes < length)
    throw std::runtime_error("a tensor of " + std::to_string(length) + " bytes lies in a storage of " + std::to_string(storage_bytes) + " bytes");
  return digest_of(tensor.const_data_ptr(), length);
}

// The digest of the whole state of a generator; made anew only if the generator has moved.
//
// With the GIL held: who forks holds it too, and a lock that another thread held then would never be given back in the child.
// While one that draws holds the lock, other threads run Python.
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
  const Plain plain;
  now.generator = generator.unsafeGetGeneratorImpl();
  now.seed = seed_of(generator);
  if (now.seed.has_value() && known.generator == now.generator && known.seed == now.seed) return known.digest;
  const at::Tensor state = generator.get_state();
  lock.unlock();
  now.digest = digest_tensor(state);
  known = now;
  return known.digest;
}

// A storage that an op of another thread than the main one uses, and who had written it when the op began.
struct Used {
  std::shared_ptr<StorageState> state;
  int64_t writes;
  std::shared_ptr<StorageState> known;  // To the main thread; null if it is not.
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
  c10::SmallVector<std::pair<size_t, at::Tensor>, 2> read;  // Which of `digests` are still to be made, of what.
  Pending pending;  // Of those in `digests`.
  std::vector<std::pair<size_t, at::Tensor>> watched;  // Which of `digests` another thread may make untrue while the op runs.
  std::vector<Used> used;
  c10::SmallVector<at::Tensor, 2> targets;
  std::optional<at::Generator> generator;
  Digest state{};
  int32_t arguments = -1;
  bool wrote_view = false;
  PyObject* call = nullptr;  // What Python keeps of an op between its beginning and its end.
};

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
      const Apart apart;
      const py::tuple lifted = state.lifted;
      const py::tuple found = py::handle(owner).attr("native_lifted")(Stream::tensor_object(tensor), lifted[1]);
      if (lifted[0].template cast<int32_t>() == layout.number && found[1].template cast<bool>()) record = EXTERNAL;
      context.digests.push_back({position, from_bytes(found[0])});
    } else if (state.lifted.is_none()) {
      context.read.emplace_back(context.digests.size(), tensor);
      context.digests.push_back({position, Digest{}});
    } else {
      // The owner of the memory may have filled it anew: then what is read never came through the op that took it over.
      const Digest digest = digest_tensor(tensor);
      const py::tuple lifted = state.lifted;
      if (lifted[0].cast<int32_t>() == layout.number && from_bytes(lifted[1]) != digest) record = EXTERNAL;
      context.digests.push_back({position, digest});
    }
  }
  context.edges.push_back({record, state.output, access, layout.number});
  if (must_tell_of_leaf(tensor, state)) {
    const Apart apart;
    const bool is_parameter = py::handle(owner).attr("native_leaf_read")(Stream::tensor_object(tensor)).template cast<bool>();
    if (is_parameter)
      state.parameter.emplace(c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(tensor.getIntrusivePtr()));
  }
  return layout.fills_storage;
}

// Has the tensors on devices digested that were looked at.
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

// What tensors hold, before something that is no op reads them.
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

// Whether all are tensors and parameters themselves, not of classes of their own, in memory that is of this process alone.
bool are_own(const py::list& tensors) {
  for (const py::handle tensor : tensors) {
    if (!THPVariable_CheckExact(tensor.ptr())) return false;
    const at::Tensor& value = THPVariable_Unpack(tensor.ptr());
    // Memory of a device counts as that of this process: nobody could say whose it is besides.
    if (!is_simple(value) || !(is_allocated(value.storage()) || !value.device().is_cpu())) return false;
  }
  return true;
}

// The tensors of a list from a place on, up to one that is not ordinary: that place, and the inputs that the others are.
py::tuple look_at_each(Recorder& recorder, const py::list& tensors, size_t from, size_t known_inputs) {
  Looked<64> looked;
  if (recorder.stream == nullptr) throw std::runtime_error("the recorder has no stream: it has not begun, or has ended");
  const Plain plain;
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

std::atomic<bool> is_installed{false};
std::atomic<uint64_t> generation{1};
at::CallbackHandle callback = 0;  // 0: not registered.
pid_t registered_in = 0;
PyObject* threads_of_python = nullptr;  // The `Threads` of the session, while one records.

// A failure of ours never reaches the program: it becomes a blind spot. What is no `Exception`, such as an interrupt by
// the user, came from outside, and is handed to the program as soon as its own code runs again.
void failed(Recorder& recorder, const Op& op, const std::exception_ptr& error) noexcept {
  try {
    const Gil gil;
    const Apart apart;
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
    // Nothing is left that could be told.
  }
}

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

// Whether a tensor belongs to a compiler or an exporter, and has a shape only.
bool is_without_values(const at::Tensor& tensor) {
  const Gil gil;
  const py::object type = py::type::of(Stream::tensor_object(tensor));
  const py::object module = type.attr("__module__");
  return py::isinstance<py::str>(module) && module.cast<std::string>().rfind("torch._subclasses.", 0) == 0;
}

enum class Way { PASS, MUTE, RECORD };

// How to go about an op: pass over to the ops inside it, mute it and all inside it, or record it and mute what is inside.
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
  // What runs with dispatch to Python switched off, such as what `torch.tensor` fills from Python's numbers, is part of
  // what switched it off.
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
    // A kernel of its own for the kind of tensor goes before the composite one.
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

// The arguments of an op as a dispatch mode gets them: those at the end that are as by default are left out.
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

// Adds an argument to a key; false if it is of a kind that only Python can tell apart.
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

// What an op draws from that is given no generator, as `ops.generator_of`; on a device none if it is not known which.
at::Generator default_generator(std::optional<c10::Device> device, c10::ArrayRef<const c10::IValue> inputs) {
  for (size_t at = 0; !device.has_value() && at < inputs.size(); ++at)
    if (inputs[at].isTensor() && inputs[at].toTensor().defined()) device = inputs[at].toTensor().device();
  if (!device.has_value() || device->is_cpu()) return at::detail::getDefaultCPUGenerator();
  if (!device->has_index()) device = c10::impl::VirtualGuardImpl(device->type()).getDevice();
  return at::globalContext().defaultGenerator(*device);
}

// What is known of the arguments of an op before it runs. False: it is for Python.
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
  // Of a copy that nobody waits for the end is not known.
  if (op.non_blocking_at >= 0 && inputs[op.non_blocking_at].isBool() && inputs[op.non_blocking_at].toBool() && has_device(inputs)) return false;
  if (op.is(DRAWS) && !context.generator.has_value()) context.generator = default_generator(device, inputs);
  {
    const Gil gil;
    const Inside inside;
    if (context.generator.has_value()) context.state = recorder.state_of(*context.generator);
    auto& numbers = context.stream->arguments();
    const Digest key = words.key();
    auto found = numbers.find(key);
    if (found == numbers.end()) {
      const Apart apart;
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
  // What no record made is digested before the op runs, without keeping other threads from running Python.
  for (const auto& [at, tensor] : context.read)
    if (!is_on_device(tensor)) context.digests[at].digest = digest_tensor(tensor);
  context.read.clear();
  return true;
}

void begin_python(Context& context, c10::ArrayRef<const c10::IValue> inputs) {
  const Gil gil;
  const Apart apart;
  const auto [args, kwargs] = arguments_of(*context.op, inputs);
  py::object call = py::handle(context.recorder->owner).attr("native_before")(py::handle(context.op->known), args, kwargs);
  context.call = call.release().ptr();
}

void add_written(c10::SmallVectorImpl<at::Tensor>& written, const at::Tensor& tensor) {
  for (const at::Tensor& known : written)
    if (known.is_same(tensor)) return;
  written.push_back(tensor);
}

// Whether another thread wrote what an op that has just run had read, as far as bytes show it.
bool are_changed(const Context& context, const c10::SmallVectorImpl<at::Tensor>& written) {
  for (const auto& [at, tensor] : context.watched) {
    const auto is_here = [&](const at::Tensor& own) { return own.has_storage() && own.storage().is_alias_of(tensor.storage()); };
    if (std::none_of(written.begin(), written.end(), is_here) && digest_tensor(tensor) != context.digests[at].digest) return true;
  }
  return false;
}

// Whether the code that reads a value is `unread_in`. With the GIL held.
bool is_unread() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr || unread_in == nullptr) return false;
  PyCodeObject* code = PyFrame_GetCode(frame);
  Py_DECREF(code);  // The frame holds it.
  return reinterpret_cast<PyObject*>(code) == unread_in;
}

// What a value that is no tensor is as an output, as `native_value` gives it; of a plain number without asking Python.
Output value_output(Stream& stream, py::handle owner, const py::object& value) {
  if (PyFloat_CheckExact(value.ptr()) || PyLong_CheckExact(value.ptr()) || PyBool_Check(value.ptr())) {
    const py::str text = py::repr(value);
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (data == nullptr) throw py::error_already_set();
    return {stream.value_layout(), digest_of(data, static_cast<size_t>(size))};
  }
  const Apart apart;
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
  c10::SmallVector<size_t, 4> asked;  // Which of them a device digests.
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

  const Gil gil;
  const Inside inside;
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
      const Apart apart;
      const bool is_digested = !has_no_values && std::find(op.workspaces.begin(), op.workspaces.end(), static_cast<int>(at)) == op.workspaces.end();
      const py::tuple found = owner.attr("native_output")(Stream::tensor_object(written[at]), is_digested);
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
    owner.attr("native_value_read")(record, has_edge ? context.edges[0].record : -1, has_edge ? context.edges[0].output : 0, value);
  }
}

void end_python(Context& context, c10::ArrayRef<c10::IValue> outputs) {
  const Gil gil;
  const Apart apart;
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

// The recorder of this thread. A thread of the framework, as one that takes over a deep backward, works for the main one.
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
  const Gil gil;
  if (threads_of_python == nullptr) return nullptr;
  const py::object recorder = py::handle(threads_of_python).attr("recorder")();
  if (!recorder.is_none()) thread.recorder = recorder.attr("native").cast<Recorder*>();
  return thread.recorder;
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
  if (!is_installed || thread.inside > 0) return nullptr;
  Recorder* recorder = recorder_of_thread(thread);
  if (recorder == nullptr || recorder->is_busy || !(recorder->is_active || recorder->is_asleep)) return nullptr;
  Context* parent = thread.innermost;
  // What an op runs below autograd is part of it. What its autograd kernel runs beside it is not: a formula of
  // forward-mode differentiation, or what a custom op prepares for its backward.
  if (parent != nullptr && !(parent->has_autograd && !c10::impl::tls_is_dispatch_key_excluded(DispatchKey::AutogradFunctionality)))
    return nullptr;
  Op* op = ops().of(function);
  if (op == nullptr || !op->handle.has_value()) return nullptr;
  std::unique_ptr<Context> context;
  try {
    DispatchKeySet keys;
    bool is_special = false;
    // A boxed call shows the whole stack of the interpreter, on which other things may lie below.
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
        const Gil gil;
        const Apart apart;
        py::handle(recorder->owner).attr("is_ready")();
        if (!recorder->is_active) return nullptr;
      }
      context->stream = recorder->stream.get();
      context->has_autograd = op->has_autograd && has_autograd(keys);
      if (!op->is_learned) {
        const Gil gil;
        const Apart apart;
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
        const Gil gil;
        const Inside inside;
        recorder.link_view();
      }
    }
  } catch (...) {
    failed(recorder, *context.op, std::current_exception());
  }
  if (context.call != nullptr || !context.pending.empty()) {
    const Gil gil;
    context.pending.clear();
    Py_XDECREF(std::exchange(context.call, nullptr));
  }
}

void install(py::object threads, const py::object& unread) {
  if (is_installed) throw std::runtime_error("the observer is installed already");
  Py_XSETREF(unread_in, py::object(unread).release().ptr());
  if (set_eval_frame == nullptr)
    set_eval_frame = py::object(py::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame")).release().ptr();
  ++generation;
  threads_of_python = threads.release().ptr();
  is_installed = true;
  if (callback != 0) return;
  registered_in = getpid();
  callback = at::addGlobalCallback(at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  read_observers();
}

void uninstall() {
  if (!is_installed.exchange(false)) return;
  ++generation;
  // In a forked child the lock of PyTorch's list may be held by a thread that is not there: the observer stays, and does nothing.
  if (getpid() == registered_in) at::removeCallback(std::exchange(callback, 0));
  Py_CLEAR(threads_of_python);
}

void attach_thread(Recorder& recorder) {
  read_observers();
  thread_state.generation = generation;
  recorder.python_thread = PyThreadState_Get();
  thread_state.recorder = &recorder;
  thread_state.is_own = true;
  thread_state.was_asked = true;
}

void detach_thread() { thread_state.recorder = nullptr; }

// The recorder of this thread of the program, if it records and was not put in the place of another; else null.
Recorder* own_recorder() {
  const ThreadState& thread = thread_state;
  if (!is_installed || thread.generation != generation || thread.recorder == nullptr || !thread.is_own) return nullptr;
  return thread.recorder;
}

// Records that the memory of a tensor is handed to the program, which may write it from now on. False, with nothing recorded, where
// Python must do so: of tensors that are not ordinary, and in threads that work for another.
bool escape(Recorder& recorder, const py::handle& object, int32_t op) {
  constexpr int8_t READ = 0, ESCAPE = 1;
  if (own_recorder() != &recorder) return false;
  if (!recorder.is_active || recorder.is_busy || recorder.asks_python || recorder.stream == nullptr) return false;
  if (!THPVariable_CheckExact(object.ptr())) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
  if (!is_simple(tensor)) return false;
  Looked<1> looked;
  const Plain plain;
  recorder.look_at(looked, tensor, READ);
  looked.digest(*recorder.stream);
  Pending none;
  recorder.append(ESCAPE, op, -1, looked, c10::SmallVector<Output, 1>(), none, {});
  recorder.stream->state(tensor).externally_writable = true;
  return true;
}

// Records what the program holds, as `RecordMaker.hold` does; `generators` are digests of the states of generators. -1, with nothing recorded,
// where Python must do so: of tensors that are not ordinary, and in threads that work for another.
int64_t hold(Recorder& recorder, const py::list& tensors, int32_t op, int32_t arguments, const py::sequence& generators) {
  constexpr int8_t READ = 0, STATE = 4;
  if (own_recorder() != &recorder || !recorder.is_active || recorder.is_waiting || recorder.asks_python || recorder.stream == nullptr) return -1;
  for (const py::handle tensor : tensors)
    if (!is_simple(unpacked(tensor))) return -1;
  c10::SmallVector<Digest, 4> states;
  for (const py::handle state : generators) states.push_back(from_bytes(state));
  Looked<64> looked;
  const Plain plain;
  for (const py::handle tensor : tensors) recorder.look_at(looked, unpacked(tensor), READ);
  looked.digest(*recorder.stream);
  return recorder.append_outside(STATE, op, arguments, looked, states);
}

// Functions of Python's own interface: a call of a module takes less than what pybind11 needs for one of its functions.
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

// Notes that a module is called; False, with nothing noted, where Python must do so.
PyObject* enter_module(PyObject*, PyObject* module) {
  return called([&] {
    Recorder* recorder = own_recorder();
    if (recorder == nullptr || !recorder->is_active || recorder->is_waiting) return false;
    recorder->enter(module);
    return true;
  });
}

// Notes that it returned or raised; of no consequence where recording ended meanwhile.
PyObject* leave_module(PyObject*, PyObject* module) {
  return called([&] {
    Recorder* recorder = own_recorder();
    if (recorder == nullptr || recorder->stream == nullptr) return false;
    recorder->leave(module);
    return true;
  });
}

PyMethodDef calls_of_modules[] = {{"enter_module", enter_module, METH_O, nullptr}, {"leave_module", leave_module, METH_O, nullptr}};

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

// What differs whenever modules, given as weak references, or optimizers hold other tensors or children, or by other names; None if one is
// gone, or holds them in an unusual way.
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
  const Plain plain;
  const DispatchKey key = storage->device_type() == c10::kCPU ? DispatchKey::CPU : DispatchKey::CUDA;
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), DispatchKeySet(key), caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({length});
  return Stream::tensor_object(tensor);
}

}  // namespace
}  // namespace determinism

PYBIND11_MODULE(_determinism_observer, module) {
  using namespace determinism;
  module.attr("instructions") = choose_digest();
  // Never taken off: it is asked of ops as long as the process lives.
  static auto* const listening = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<RemovedOps>()));
  (void)listening;
  ops();  // Made now: a thread that makes it while another one forks would keep it from ever being made in the child.
  module.attr("built_for") = BUILT_FOR;
  module.def("install", &install);
  module.def("uninstall", &uninstall);
  module.def("attach_thread", &attach_thread);
  module.def("detach_thread", &detach_thread);
  // Whether observers, such as a profiler, are told of the ops of this thread; gives what held before.
  module.def("observe", [](bool is_observed) {
    const bool before = at::isRecordFunctionEnabled();
    at::enableRecordFunction(is_observed);
    return before;
  });
  module.def("hide", [] { ++thread_state.inside; });
  module.def("show", [] { --thread_state.inside; });
  module.def("are_own", &are_own);
  module.def("identities", &identities);
  for (PyMethodDef& method : calls_of_modules)
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
      // A node that only adds up gradients has the greatest number, which no link has.
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

  // Sets which devices digest the tensors that they hold: "cuda", or "cpu" in tests.
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
      .def_property_readonly("links", [](Recorder& recorder) -> ForwardLinks& { return recorder.links; }, py::return_value_policy::reference_internal)
      .def("begin", &Recorder::begin)
      .def("look_at_each", &look_at_each)
      .def("escape", &escape)
      .def("hold", &hold)
      .def("state_digest", [](Recorder& recorder, const py::handle& generator) {
        at::Generator unwrapped = THPGenerator_Unwrap(generator.ptr());
        return as_bytes(recorder.state_of(unwrapped));
      })
      .def("close", &Recorder::close);
}
