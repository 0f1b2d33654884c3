// One stream of records: the numbers of its names, layouts and arguments, and its storages.
#pragma once

#include "device_queue.h"
#include "op_table.h"
#include "python_objects.h"

#include <torch/csrc/Device.h>

namespace determinism {
namespace {

// One stream of records, with the numbers of the names in it.
class Stream {
 public:
  // `python` is the `edges.Stream` whose numbers this knows and which owns this.
  explicit Stream(const py::object& python) : python_(python) {}

  // Requests digests of tensors on devices: immediate digests go to `put` with the tensor's index, later ones to `pending`, where the
  // tensors have the indices `at`.
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
    const IsolationGuard apart;
    const py::list found = python().attr("digests").attr("of_each")(objects);
    for (size_t number = 0; number < tensors.size(); ++number) {
      const py::object digest = found[number];
      if (PyBytes_Check(digest.ptr())) put(number, from_bytes(digest));
      else pending.add(at[number], digest.attr("delivery"), digest.attr("position").template cast<int32_t>());
    }
  }

  // Returns the record's number; -1 if Python must append it.
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
      const IsolationGuard apart;
      return python().attr("storages").attr("is_shared")(tensor_object(tensor)).cast<bool>();
    });
  }

  Layout layout(const at::Tensor& tensor, const StorageState& state) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const size_t storage_bytes = impl->unsafe_storage().nbytes();
    const Words words = view_of(*impl, state.is_shared, storage_bytes);
    RecentLayout& recent = recent_layouts_[words.slot() % recent_layouts_.size()];
    if (words.are(recent.words)) return recent.layout;
    const Layout known = known_layout(tensor, words.key(), storage_bytes);
    recent.words.assign(words.begin(), words.end());
    return recent.layout = known;
  }

  // The number for a tensor whose storage is not recorded.
  int32_t layout_without_storage(const at::Tensor& tensor) {
    const Digest key = view_of(*tensor.unsafeGetTensorImpl(), false, 0).key();
    const auto found = layouts_without_storage_.find(key);
    if (found != layouts_without_storage_.end()) return found->second;
    const IsolationGuard apart;
    const int32_t made = python().attr("layouts").attr("number_without_storage")(tensor_object(tensor)).cast<int32_t>();
    if (layouts_without_storage_.size() >= MOST_KEYS) layouts_without_storage_.clear();
    layouts_without_storage_.emplace(key, made);
    return made;
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

  // The number of an op that is not PyTorch's, by its name.
  int32_t op_number(PyObject* name) {
    for (const auto& [known, number] : named_)
      if (known.ptr() == name) return number;
    const int32_t asked = python().attr("op_number")(py::handle(name)).cast<int32_t>();
    named_.push_back({py::reinterpret_borrow<py::object>(name), asked});
    return asked;
  }

  ByDigest<int32_t>& arguments() {
    if (arguments_.size() >= MOST_KEYS) arguments_.clear();
    return arguments_;
  }

  // The layout number of a non-tensor value.
  int32_t value_layout() {
    if (value_layout_ < 0) value_layout_ = python().attr("layouts").attr("value_number").cast<int32_t>();
    return value_layout_;
  }

  py::handle python() const { return python_; }

  void forget_devices() {
    queues_.clear();
    known_places_ = {};
  }

  // Keeps other threads from appending to the writer, until `unlock` if it returns true; meanwhile nothing may throw or release the GIL.
  // If the writer's lock is free, no other thread can begin to append as long as the GIL is held.
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

  // Notes that an op returned a number to the program, as `ProcessWriter.number` does, unless the step has many already.
  void add_read_number(int64_t record, int64_t producer, const py::object& value, int32_t step, int32_t output) {
    if (!pending_numbers_) {
      pending_numbers_ = python().attr("writer").attr("pending_numbers");
      const py::module_ kept_values = py::module_::import("determinism.trace.kept_values");
      most_numbers_ = kept_values.attr("MOST_NUMBERS").cast<size_t>();
      read_ = kept_values.attr("Meaning").attr("READ");
    }
    if (pending_numbers_.size() < most_numbers_) pending_numbers_.append(py::make_tuple(record, producer, value, step, output, read_));
  }

  PyObject* outermost = nullptr;  // The outermost frame of stacks, kept alive by Python's table; null: stacks are not cut.
  Table<PyObject*, int> owners;  // By code object, which Python's table keeps alive.
  ByDigest<int32_t> stacks;
  ByDigest<int64_t> outsides;

 private:
  // The key of a layout.
  static Words view_of(const c10::TensorImpl& impl, bool is_shared, size_t storage_bytes) {
    Words words;
    words.add(static_cast<uint64_t>(c10::typeMetaToScalarType(impl.dtype())) | (is_shared ? 256u : 0u) |
              static_cast<uint64_t>(static_cast<uint8_t>(impl.device_type())) << 16 |
              static_cast<uint64_t>(static_cast<uint8_t>(impl.device().index())) << 24);
    words.add(storage_bytes);
    words.add(static_cast<uint64_t>(impl.storage_offset()));
    for (int64_t size : impl.sizes()) words.add(static_cast<uint64_t>(size));
    for (int64_t stride : impl.strides()) words.add(static_cast<uint64_t>(stride));
    return words;
  }

  Layout known_layout(const at::Tensor& tensor, const Digest& key, size_t storage_bytes) {
    auto found = layouts_.find(key);
    if (found != layouts_.end()) return found->second;
    const IsolationGuard apart;
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

  // See `DeviceQueue::ask`. If it fails, Python does it, and reports any failure.
  static int32_t asked(DeviceQueue& queue, c10::ArrayRef<at::Tensor> tensors, py::object& delivery) {
    try {
      return queue.ask(tensors, delivery);
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;
    } catch (const std::exception&) {
    }
    return -1;
  }

  // The native queue of digests on a device; null if Python queues them.
  DeviceQueue* queue_of(const c10::Device& device) {
    const size_t index = device.has_index() ? static_cast<size_t>(device.index()) : 0;
    if (index < queues_.size() && queues_[index].is_known) return queues_[index].queue;
    if (index >= queues_.size()) queues_.resize(index + 1);
    const IsolationGuard apart;
    const py::object queue = python().attr("queue_of")(py::reinterpret_steal<py::object>(THPDevice_New(device)));
    if (queue.ptr() == Py_False) return nullptr;
    queues_[index] = {true, queue, queue.is_none() ? nullptr : queue.cast<DeviceQueue*>()};
    return queues_[index].queue;
  }

  // Remembers where the digests of a delivery go, until they arrive.
  void see_places(const py::object& delivery) {
    if (places_of(delivery.ptr()) != nullptr) return;
    const py::object places = python().attr("writer").attr("digest_places")(delivery);
    if (places.is_none()) return;
    KnownPlaces& known = known_places_[next_places_++ % known_places_.size()];
    known.cells.emplace(py::buffer(places).request());
    known.delivery = delivery;
  }

  // Finds the places of the pending digests; false if any is missing or taken.
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
      // The last cell says whether places may still be added.
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
  py::object lock_;  // The lock that the writer holds while it appends.
  std::optional<py::buffer_info> num_held_;  // How often it is held.
  py::list pending_numbers_{py::reinterpret_steal<py::list>(nullptr)};  // See `NumbersWriter.pending`.
  size_t most_numbers_ = 0;
  py::object read_;  // The meaning of numbers that an op returned.
  std::vector<int32_t> numbers_;
  c10::SmallVector<std::pair<py::object, int32_t>, 4> named_;
  int32_t value_layout_ = -1;
  ByDigest<Layout> layouts_;
  ByDigest<int32_t> layouts_without_storage_;
  std::array<RecentLayout, 64> recent_layouts_;  // By slots of their keys, which are compared without a digest.
  ByDigest<int32_t> arguments_;
};

}  // namespace
}  // namespace determinism
