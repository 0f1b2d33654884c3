// Digests of tensors on a GPU, queued on the program's streams.
#pragma once

#include "own_code.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace determinism {
namespace {

// Whether the elements are one block of bytes, from the tensor's address on.
bool is_block(const at::Tensor& tensor) {
  return tensor.is_contiguous() || (tensor.storage().nbytes() == tensor.nbytes() && tensor.is_non_overlapping_and_dense());
}

// Queues digests on a GPU as `device_digests.CudaDigests` does, by calling NVIDIA's driver. Everything except the launches is done
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

  // Queues the digesting of tensors of the device, as they are at this point of the current stream. Returns the position of the first in
  // a delivery; -1 if Python must do so.
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
      const IsolationGuard apart;
      py::handle(ring_).attr("make_room")(count);
    }
    if (known_batch_ != cells(cursor_)[2]) {
      const int64_t number = cells(cursor_)[2];
      delivery_ = py::object(py::handle(ring_).attr("batch")).ptr();
      known_batch_ = number;
    }
    // No other thread can take entries now: that requires the ring's lock or the GIL.
    if (cells(num_held_)[0] != 0 || cells(cursor_)[1] + count > entries_ || known_batch_ != cells(cursor_)[2]) return -1;
    const int64_t first = cells(cursor_)[0] + cells(cursor_)[1];
    const int64_t position = cells(cursor_)[1];
    cells(cursor_)[1] += count;
    py::object batch = py::reinterpret_borrow<py::object>(delivery_);
    // The driver blocks if much is queued already; meanwhile other threads run, and no batch is fetched: see `Ring.cursor`.
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

  // Finds the bytes of tensors, copied if they are not contiguous; false if they are too large for that.
  bool find_blocks(c10::ArrayRef<at::Tensor> tensors, c10::SmallVectorImpl<at::Tensor>& copies, c10::SmallVectorImpl<Block>& blocks) const {
    size_t copied = 0;
    for (const at::Tensor& tensor : tensors) {
      const size_t length = tensor.nbytes();
      if (length == 0) return false;
      if (is_block(tensor)) {
        // Python reports an error for memory that was freed.
        if (tensor.storage().nbytes() < length + static_cast<size_t>(tensor.storage_offset()) * tensor.element_size()) return false;
        blocks.push_back({reinterpret_cast<int64_t>(tensor.const_data_ptr()), static_cast<int64_t>(length)});
        continue;
      }
      if ((copied += length) > most_copied_) return false;
      const IsolationGuard apart;
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

  PyObject* const ring_;  // The owner of this queue.
  const py::buffer_info cursor_, num_held_, captures_;
  const int64_t entries_;
  const Kernel single_, several_;
  c10::Device device_{c10::kCUDA};
  int64_t keys_, slots_, table_, columns_, tile_bytes_, programs_, fewest_programs_;
  size_t most_copied_;
  int64_t* host_table_;
  py::object stream_of_, event_of_stream_;
  int64_t known_batch_ = -1;
  PyObject* delivery_ = nullptr;  // The batch of that number, kept alive by the ring while it is being filled.
  Table<void*, void*> events_;  // By stream.
  int (*launch_kernel_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) = nullptr;
  int (*copy_)(unsigned long long, const void*, size_t, void*) = nullptr;
  int (*record_event_)(void*, void*) = nullptr;
  int (*is_capturing_)(void*, int*) = nullptr;
};

}  // namespace
}  // namespace determinism
