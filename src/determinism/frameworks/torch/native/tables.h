// What is known about ops, storages and layouts, and where rows go. All of it is accessed only with the GIL held.
#pragma once

#include <torch/csrc/autograd/python_variable.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace determinism {

namespace py = pybind11;
using Digest = std::array<unsigned char, 16>;

// Chosen once, by the processor's instruction sets.
extern void (*digest_bytes)(const void* data, size_t length, unsigned char* digest);

inline Digest digest_of(const void* data, size_t length) {
  Digest digest;
  digest_bytes(data, length, digest.data());
  return digest;
}

inline py::bytes as_bytes(const Digest& digest) {
  return py::bytes(reinterpret_cast<const char*>(digest.data()), digest.size());
}

struct DigestHash {
  size_t operator()(const Digest& digest) const {
    size_t part;
    std::memcpy(&part, digest.data(), sizeof part);
    return part;
  }
};

// Takes half the time of `std::unordered_map`; each record needs several lookups. Inserting may move the other entries.
template <class Key, class Value, class Hash = std::hash<Key>>
using Table = ska::flat_hash_map<Key, Value, Hash>;

template <class Value>
using ByDigest = Table<Digest, Value, DigestHash>;

// The devices that digest their own tensors, through Python's implementation; the CPU in tests.
inline c10::DeviceType digesting_devices = c10::kCUDA;

inline bool is_on_device(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->device_type() == digesting_devices; }

// Whether a tensor is an ordinary view of ordinary memory, on the CPU or on such a device; only these are handled natively.
inline bool is_simple(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  constexpr c10::DispatchKeySet special({
      c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor, c10::DispatchKey::Python,
      c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize,
      c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::NestedTensor});
  if (impl->layout() != c10::kStrided || !(impl->device_type() == c10::kCPU || is_on_device(tensor)) || !impl->has_storage() ||
      impl->key_set().has_any(special) || impl->has_symbolic_sizes_strides() || impl->is_wrapped_number())
    return false;
  if (c10::isQIntType(c10::typeMetaToScalarType(impl->dtype()))) return false;
  if (impl->numel() == 0) return true;
  // Python reports an error for memory that was freed.
  const auto& storage = impl->unsafe_storage();
  return storage.data() != nullptr && storage.nbytes() > 0;
}

enum Flag : int {
  IGNORED = 1, VIEW = 2, UNINITIALIZED = 4, ASYNCHRONOUS = 8, LIFT = 16, DRAWS = 32, UNVALUED = 64, READS_WRITTEN = 128,
  KEEPS_UNWRITTEN = 256, RETURNS_TARGET = 512, BY_PYTHON = 1024,
};

// An op: how the dispatcher treats it, and how it is recorded, which Python provides.
struct Op {
  size_t id = 0;
  std::string name;
  std::string overload;
  std::optional<c10::OperatorHandle> handle;
  uint64_t num_removed = 0;  // How many ops had been removed when it was found; if more are, its handle may be invalid.
  size_t num_arguments = 0, num_results = 0;
  bool is_composite = false;
  bool has_autograd = false;
  bool has_autocast = false, has_autocast_on_gpu = false;
  bool has_vmap_mode = false;
  int non_blocking_at = -1;  // Position of the argument `non_blocking`.

  std::atomic<bool> is_learned{false};
  int flags = 0;
  std::vector<int> written;
  int accumulate_at = -1;
  std::vector<int> hidden;
  int hidden_flag = -1;
  std::vector<int> workspaces;
  PyObject* known = nullptr;  // What Python knows about it; lives as long as the process.

  bool is(Flag flag) const { return (flags & flag) != 0; }
};

struct Layout {
  int32_t number;
  bool fills_storage;
};

constexpr int64_t EXTERNAL = -1;

// Whether PyTorch allocated the memory itself, so that it is not shared.
inline bool is_allocated(const c10::Storage& storage) {
  return storage.resizable() && storage.device_type() == c10::kCPU &&
         (storage.data() == nullptr || storage.data_ptr().get_deleter() == c10::GetCPUAllocator()->raw_deleter());
}

// What is known about one storage. Its address is not reused while the weak reference is held.
struct StorageState {
  explicit StorageState(const c10::Storage& storage)
      : key(storage.unsafeGetStorageImpl()), reference(storage.getWeakStorageImpl()) {}

  c10::StorageImpl* key;
  c10::weak_intrusive_ptr<c10::StorageImpl> reference;
  int64_t record = EXTERNAL;
  int32_t output = 0;
  bool externally_writable = false;
  bool is_shared = false;
  // Whether it has not been written since it was allocated.
  bool is_unwritten = false;
  // How often threads other than the main one wrote it, in their own table; whether one did, in that of the main thread.
  int64_t writes = 0;
  bool is_of_threads = false;
  // A tensor in this storage that is known to be a parameter.
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> parameter;
  py::object layouts = py::none(), digest = py::bytes(""), view = py::none(), lifted = py::none(), writer = py::none();
};

// A table of the storages that records have touched.
class StorageTable {
 public:
  std::shared_ptr<StorageState> known(const at::Tensor& tensor) const {
    auto found = states_.find(tensor.storage().unsafeGetStorageImpl());
    return found == states_.end() ? nullptr : found->second;
  }

  // `describe` returns whether processes share a CPU storage that PyTorch did not allocate itself.
  template <class Describe>
  StorageState& state(const at::Tensor& tensor, Describe describe) {
    const c10::Storage& storage = tensor.storage();
    auto found = states_.find(storage.unsafeGetStorageImpl());
    if (found != states_.end()) return *found->second;
    auto made = std::make_shared<StorageState>(storage);
    if (!is_allocated(storage)) {
      made->is_shared = storage.device_type() == c10::kCPU && describe();
      made->externally_writable = made->is_shared || !storage.resizable();
    }
    if (states_.size() >= sweep_at_) sweep();
    return *states_.emplace(storage.unsafeGetStorageImpl(), made).first->second;
  }

  std::shared_ptr<StorageState> shared(const at::Tensor& tensor) { return states_.at(tensor.storage().unsafeGetStorageImpl()); }

  std::vector<std::shared_ptr<StorageState>> all() const {
    std::vector<std::shared_ptr<StorageState>> found;
    for (const auto& [key, state] : states_) found.push_back(state);
    return found;
  }

  void written_elsewhere(c10::StorageImpl* key) {
    auto found = states_.find(key);
    if (found == states_.end()) return;
    found->second->record = EXTERNAL;
    found->second->externally_writable = found->second->is_of_threads = true;
  }

 private:
  static constexpr size_t NEW_BETWEEN_SWEEPS = 1024;

  void sweep() {
    for (auto at = states_.begin(); at != states_.end();) {
      if (at->second->reference.expired()) at = states_.erase(at);
      else ++at;
    }
    sweep_at_ = states_.size() + std::max(NEW_BETWEEN_SWEEPS, states_.size() / 2);
  }

  Table<c10::StorageImpl*, std::shared_ptr<StorageState>> states_;
  size_t sweep_at_ = NEW_BETWEEN_SWEEPS;
};

// Maps the number of a node of the autograd graph to the forward record that made it; see `modules.ForwardLinks`.
struct Link {
  int64_t record = -1;
  int32_t stack = -1;
  int32_t module = -1;
};

class ForwardLinks {
 public:
  int64_t last = -1;
  std::optional<Link> newest;
  std::optional<Link> wrote_view;

  void add(int64_t sequence, Link link) {
    if (last != sequence - 1 && last >= 0) {
      int64_t first = std::max(last, sequence - 1 - MOST_SKIPPED);
      for (int64_t number = first; number < sequence - 1; ++number)
        // The node of a write into a view was counted with the write; the next access to the view recreates it.
        new_.emplace(number, wrote_view && number == first ? *wrote_view : link);
    }
    last = sequence;
    newest = link;
    wrote_view.reset();
    new_.emplace(sequence - 1, link);
    if (new_.size() >= MOST_LINKS) age();
  }

  Link of(int64_t sequence) const {
    auto found = new_.find(sequence);
    if (found != new_.end()) return found->second;
    found = old_.find(sequence);
    return found != old_.end() ? found->second : Link{};
  }

  void age() {
    old_ = std::move(new_);
    new_.clear();
  }

 private:
  static constexpr int64_t MOST_SKIPPED = 8;
  static constexpr size_t MOST_LINKS = 200000;
  Table<int64_t, Link> new_, old_;
};

struct InputEdge {
  int64_t record;
  int32_t output;
  int8_t access;
  int32_t layout;
};

struct InputDigest {
  int32_t position;
  Digest digest;
};

struct Output {
  int32_t layout;
  Digest digest;
};

// Pending digests of some items of a list, by their indices: in Python, `spool.PendingDigest`. Everything, destruction included,
// requires the GIL.
class Pending {
 public:
  struct One {
    size_t at;
    py::object delivery;
    int32_t position;
    int64_t* places = nullptr;  // See `spool.WaitingRows.places`; borrowed, while no other thread can append.
  };

  void add(size_t at, py::object delivery, int32_t position) { digests_.push_back({at, std::move(delivery), position}); }
  void clear() { digests_.clear(); }
  bool empty() const { return digests_.empty(); }
  One* begin() { return digests_.begin(); }
  One* end() { return digests_.end(); }

  // The pending digest with an index, for Python; or the given bytes.
  py::object of(size_t at, const Digest& digest, const py::object& type) const {
    for (const One& pending : digests_)
      if (pending.at == at) return type(pending.delivery, pending.position);
    return as_bytes(digest);
  }

 private:
  c10::SmallVector<One, 2> digests_;
};

struct Cells {
  int32_t thread, step;
  int8_t phase, role;
  int32_t op, module, stack;
  int64_t forward;
  int32_t forward_stack, arguments;
};

#pragma pack(push, 1)
struct InputRow {
  int64_t record;
  int32_t output;
  int8_t access;
  int32_t layout;
};
struct DigestRow {
  int32_t number;
  Digest digest;
};
#pragma pack(pop)

// Puts rows into the memory of a spool, as `trace.spool.Spool.append` does.
class Rows {
 public:
  bool is_attached() const { return memory_ != nullptr; }

  void attach(const py::buffer& memory, const py::buffer& counts, const std::vector<int64_t>& offsets,
              const std::vector<int64_t>& sizes, int64_t record_capacity, int64_t child_capacity, int64_t count_at,
              int64_t first_at) {
    const std::vector<int64_t> expected{PACKED_RECORD, sizeof(InputRow), sizeof(DigestRow), sizeof(DigestRow), sizeof(Digest)};
    if (sizes != expected) throw std::runtime_error("rows of the spool have another size");
    detach();
    held_ = py::make_tuple(memory, counts);
    memory_info_ = std::make_unique<py::buffer_info>(memory.request(true));
    counts_info_ = std::make_unique<py::buffer_info>(counts.request(true));
    memory_ = static_cast<char*>(memory_info_->ptr);
    counts_ = static_cast<int64_t*>(counts_info_->ptr);
    offsets_ = offsets;
    record_capacity_ = record_capacity;
    child_capacity_ = child_capacity;
    count_at_ = count_at;
    first_at_ = first_at;
  }

  void detach() {
    memory_ = nullptr;
    memory_info_.reset();
    counts_info_.reset();
    held_ = py::object();
  }

  // Returns the record's number; -1 if there is no room. Pending digests must have their `places`, free at their positions.
  template <class Edges, class Digests, class Outputs>
  int64_t append(const Cells& cells, const Edges& edges, const Digests& digests, Pending& pending_digests, const Outputs& outputs,
                 Pending& pending_outputs, c10::ArrayRef<Digest> generators) {
    const int64_t row = counts_[0];
    const int64_t ends[4] = {
        counts_[1] + static_cast<int64_t>(edges.size()), counts_[2] + static_cast<int64_t>(digests.size()),
        counts_[3] + static_cast<int64_t>(outputs.size()), counts_[4] + static_cast<int64_t>(generators.size())};
    if (row >= record_capacity_) return -1;
    for (int64_t end : ends)
      if (end > child_capacity_) return -1;
    char* at = memory_ + offsets_[1] + counts_[1] * static_cast<int64_t>(sizeof(InputRow));
    for (const InputEdge& edge : edges) {
      const InputRow cell{edge.record, edge.output, edge.access, edge.layout};
      at = put(at, &cell, sizeof cell);
    }
    at = memory_ + offsets_[2] + counts_[2] * static_cast<int64_t>(sizeof(DigestRow));
    for (const InputDigest& digest : digests) {
      const DigestRow cell{digest.position, digest.digest};
      at = put(at, &cell, sizeof cell);
    }
    at = memory_ + offsets_[3] + counts_[3] * static_cast<int64_t>(sizeof(DigestRow));
    for (const Output& output : outputs) {
      const DigestRow cell{output.layout, output.digest};
      at = put(at, &cell, sizeof cell);
    }
    at = memory_ + offsets_[4] + counts_[4] * static_cast<int64_t>(sizeof(Digest));
    for (const Digest& generator : generators) at = put(at, generator.data(), sizeof(Digest));
    put_record(memory_ + offsets_[0] + row * PACKED_RECORD, cells, ends);
    for (const auto& pending : pending_digests) pending.places[pending.position] = digest_at(2, counts_[2] + static_cast<int64_t>(pending.at));
    for (const auto& pending : pending_outputs) pending.places[pending.position] = digest_at(3, counts_[3] + static_cast<int64_t>(pending.at));
    for (int list = 0; list < 4; ++list) counts_[1 + list] = ends[list];
    counts_[0] = row + 1;
    const int64_t number = first() + row;
    if (counts_[IS_HELD] != 0) return number;
    // Readers treat this many records as complete.
    std::atomic_signal_fence(std::memory_order_release);
    const uint32_t count = static_cast<uint32_t>(row + 1);
    put(memory_ + count_at_, &count, sizeof count);
    return number;
  }

 private:
  static constexpr int64_t PACKED_RECORD = 54;
  static constexpr size_t IS_HELD = 5;  // Index in the counts: whether readers must not treat more records as complete yet.

  // The file offset of an entry's digest, which is at the entry's end.
  int64_t digest_at(size_t list, int64_t entry) const {
    return offsets_[list] + (entry + 1) * static_cast<int64_t>(sizeof(DigestRow)) - static_cast<int64_t>(sizeof(Digest));
  }
  int64_t first() const {
    uint64_t number;
    std::memcpy(&number, memory_ + first_at_, sizeof number);
    return static_cast<int64_t>(number);
  }

  static char* put(char* at, const void* data, size_t size) {
    std::memcpy(at, data, size);
    return at + size;
  }

  static void put_record(char* at, const Cells& cells, const int64_t (&ends)[4]) {
    at = put(at, &cells.thread, 4);
    at = put(at, &cells.step, 4);
    at = put(at, &cells.phase, 1);
    at = put(at, &cells.role, 1);
    at = put(at, &cells.op, 4);
    at = put(at, &cells.module, 4);
    at = put(at, &cells.stack, 4);
    at = put(at, &cells.forward, 8);
    at = put(at, &cells.forward_stack, 4);
    at = put(at, &cells.arguments, 4);
    for (int64_t end : ends) {
      const int32_t cell = static_cast<int32_t>(end);
      at = put(at, &cell, 4);
    }
  }

  char* memory_ = nullptr;
  int64_t* counts_ = nullptr;
  py::object held_;
  std::unique_ptr<py::buffer_info> memory_info_, counts_info_;
  std::vector<int64_t> offsets_;
  int64_t record_capacity_ = 0, child_capacity_ = 0, count_at_ = 0, first_at_ = 0;
};

}  // namespace determinism
