// The ops seen so far, with what the dispatcher knows about each.
#pragma once

#include "own_code.h"

#include <ATen/record_function.h>

namespace determinism {
namespace {

// Counts the ops that were removed, because a library of the program was destroyed or redefines them.
std::atomic<uint64_t> num_removed{0};

class RemovedOps final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle&) override { ++num_removed; }
};

// The ops that a thread has seen.
struct Known {
  Table<const void*, Op*> ops;
  uint64_t removed = 0;
};
Known& known_here() {
  // Plain numbers and pointers avoid the compiler's check at each access that thread-local objects with destructors need.
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
    // Destructors at the end of the thread may run ops after the owner is gone.
    known = has_ended ? new Known() : owner.own;
  }
  return *known;
}

// All ops seen so far. An op is identified by the address of its name in PyTorch, which is unique per overload as long as no op
// is removed. After that, each op is looked up again.
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
    // A function that is not an op has no namespace in its name, or is unknown to the dispatcher.
    if (std::strstr(name, "::") == nullptr) return nullptr;
    std::optional<c10::OperatorName> qualified = function.operator_name();
    if (!qualified.has_value()) return nullptr;
    Op* op = add(*qualified, removed);
    known.ops[name] = op;
    return op;
  }

 private:
  // The GIL protects the table: our own lock could be held by another thread at a fork, and then never be released in the child.
  Op* add(const c10::OperatorName& qualified, uint64_t removed) {
    const GilGuard gil;
    Op*& place = ops_[qualified.name + "." + qualified.overload_name];
    if (place != nullptr && place->num_removed == removed) return place;
    // The old object stays: running ops and numbers refer to it.
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

}  // namespace
}  // namespace determinism
