// How kernels that know nothing of torch share out work: the binding implements this on at::parallel_for.
#pragma once

#include <cstdint>
#include <type_traits>

namespace packed_ss::cpu {

// A reference to a callable (begin, end); it must outlive the call it is passed to.
class RangeBody {
 public:
  template <class Body, class = std::enable_if_t<!std::is_same_v<std::decay_t<Body>, RangeBody>>>
  RangeBody(Body&& body)  // NOLINT: implicit, as for any function argument
      : body_(const_cast<void*>(static_cast<const void*>(&body))), call_([](void* b, std::int64_t begin, std::int64_t end) {
          (*static_cast<std::remove_reference_t<Body>*>(b))(begin, end);
        }) {}
  void operator()(std::int64_t begin, std::int64_t end) const { call_(body_, begin, end); }

 private:
  void* body_;
  void (*call_)(void*, std::int64_t, std::int64_t);
};

class Workers {
 public:
  // Threads that run at once; 1 where a region is parallel already.
  virtual int count() const = 0;
  // Calls body for ranges that cover [0, tasks), each of about tasks / count().
  virtual void share(std::int64_t tasks, RangeBody body) const = 0;

 protected:
  ~Workers() = default;
};

// Does everything itself.
class Alone final : public Workers {
 public:
  int count() const override { return 1; }
  void share(std::int64_t tasks, RangeBody body) const override { body(0, tasks); }
};

}  // namespace packed_ss::cpu
