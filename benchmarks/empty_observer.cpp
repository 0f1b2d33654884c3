// An observer that PyTorch tells of the inputs and outputs of every op, and that keeps nothing: the floor for a recorder below Python.
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/record_function.h>

#include <memory>

namespace {

struct Context final : at::ObserverContext {
  size_t inputs = 0;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto context = std::make_unique<Context>();
  context->inputs = function.inputs().size();
  return context;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  static_cast<Context*>(context)->inputs += function.outputs().size();
}

at::CallbackHandle callback = 0;

}  // namespace

PYBIND11_MODULE(empty_observer, module) {
  module.def("install", [] {
    callback = at::addGlobalCallback(
        at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  });
  module.def("uninstall", [] { at::removeCallback(callback); });
}
