// Guards of C++ as scopes of Python's `with`.
#pragma once
#include "module.h"

namespace tessera::python {

/// Of guards that begin and end with a scope of C++. Those of one thread end in the reverse order.
template <class Guard, class... Args>
class Scope {
 public:
  explicit Scope(Args... args) : args_(args...) {}
  Scope(const Scope&) = delete;
  void enter() {
    entered_.push_back(std::apply([](const auto&... a) { return std::make_unique<Guard>(a...); }, args_));
  }
  void exit() {
    if (entered_.empty()) throw Error("this scope has not been entered");
    entered_.pop_back();
  }

 private:
  std::tuple<Args...> args_;
  std::vector<std::unique_ptr<Guard>> entered_;
};

template <class S>
nb::class_<S> bind_scope(nb::module_& m, const char* name, const char* doc) {
  return nb::class_<S>(m, name, doc)
      .def("__enter__",
           [](nb::handle self) {
             nb::inst_ptr<S>(self)->enter();
             return nb::borrow(self);
           })
      .def("__exit__", [](S& s, const nb::args&) { s.exit(); });
}

}  // namespace tessera::python
