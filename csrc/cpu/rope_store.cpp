#include "cpu/rope_store.h"

#include <cstring>

#include "cpu/multiversion.h"
#include "cpu/narrow.h"

namespace packed_ss::cpu {
namespace {

// x rounded to the element type.
template <class Element>
PACKED_SS_HOST_DEVICE typename Element::Value rounded(typename Element::Value x) {
  return Element::value(narrow(Element{}, x));
}

template <class Element>
PACKED_SS_HOST_DEVICE void rotate(HeadRows<const void*> in, const void* cos, const void* sin, const void* scale,
                                  const std::int32_t* slots, std::int64_t rows, std::int64_t size, HeadRows<void*> out) {
  using Bits = typename Element::Bits;
  using Value = typename Element::Value;
  const std::int64_t half = size / 2;
  for (std::int64_t r = 0; r < rows; ++r) {
    const Bits* x = static_cast<const Bits*>(in.data) + r * in.row_stride;
    const Bits* c = static_cast<const Bits*>(cos) + r * half;
    const Bits* s = static_cast<const Bits*>(sin) + r * half;
    Bits* __restrict y = static_cast<Bits*>(out.data) + (slots != nullptr ? slots[r] : r) * out.row_stride;
    for (std::int64_t d = 0; d < half; ++d) {
      const Value a = Element::value(x[d]), b = Element::value(x[half + d]);
      const Value cosine = Element::value(c[d]), sine = Element::value(s[d]);
      y[d] = narrow(Element{}, rounded<Element>(a * cosine) - b * sine);
      y[half + d] = narrow(Element{}, rounded<Element>(b * cosine) + a * sine);
    }
    if (scale != nullptr) {
      const Value factor = Element::value(static_cast<const Bits*>(scale)[r]);
      for (std::int64_t d = 0; d < size; ++d) y[d] = narrow(Element{}, Element::value(y[d]) * factor);
    }
  }
}

}  // namespace

PACKED_SS_MULTIVERSION
void rotate_head(DType dtype, HeadRows<const void*> in, const void* cos, const void* sin, const void* scale,
                 const std::int32_t* slots, std::int64_t rows, std::int64_t size, HeadRows<void*> out) {
  switch (dtype) {
    case DType::kFloat64: return rotate<Float64>(in, cos, sin, scale, slots, rows, size, out);
    case DType::kBFloat16: return rotate<BFloat16>(in, cos, sin, scale, slots, rows, size, out);
    case DType::kFloat16: return rotate<Float16>(in, cos, sin, scale, slots, rows, size, out);
    case DType::kFloat32: return rotate<Float32>(in, cos, sin, scale, slots, rows, size, out);
  }
}

void store_head(HeadRows<const void*> in, const std::int32_t* slots, std::int64_t rows, std::int64_t bytes, HeadRows<void*> out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(static_cast<char*>(out.data) + slots[r] * out.row_stride, static_cast<const char*>(in.data) + r * in.row_stride,
                static_cast<std::size_t>(bytes));
  }
}

}  // namespace packed_ss::cpu
